"""afterturn: long-term memory for LLM agents, handed over after the turn and erasable for good."""
