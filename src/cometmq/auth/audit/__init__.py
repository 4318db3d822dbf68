"""The audit log: who did what to what from where, whether it was allowed, and why not."""
