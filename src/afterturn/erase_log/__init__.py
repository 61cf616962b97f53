"""The erase log: what was erased, by whom, when; chained by hashes, one chain a root segment."""
