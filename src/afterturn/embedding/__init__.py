"""Vectors for texts: the embedder that the settings name, checked at each call."""
