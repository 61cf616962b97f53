"""Learning from finished turns: the extractor that the settings name, and how one is run."""
