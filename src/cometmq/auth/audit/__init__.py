"""The audit log: records who did what, to what, from where, and whether it was allowed."""
