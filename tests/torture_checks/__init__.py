"""The auditor of the torture, audited: each promise broken on paper must be seen."""
