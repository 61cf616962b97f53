"""The Celery side: the app, its worker processes, beat and Flower."""
