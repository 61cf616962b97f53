"""Reading memory in the calling process: cached per path, checked per question."""
