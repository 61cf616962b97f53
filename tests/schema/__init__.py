"""Tests of the tables, the functions and the plans of hot statements."""
