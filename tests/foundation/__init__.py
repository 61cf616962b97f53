"""Tests of what everything stands on: scopes, intake, models, settings, errors, generations."""
