"""The demo: two conversations written for it are remembered, recalled and erased."""
