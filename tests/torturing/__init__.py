"""The torture: callers that are killed, faults from a seed, and an audit of what was logged."""
