"""The ledger's calls, the rings, and what both sides of the queue agree on."""
