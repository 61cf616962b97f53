"""Takes each protection of the erase away and sees that the tests notice."""
