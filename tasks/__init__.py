"""The Celery tasks: names and arguments. What they do is in the library."""
