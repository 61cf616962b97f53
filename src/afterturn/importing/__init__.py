"""Bringing conversations in from files: formats are read here, turns go through the facade."""
