"""The audit log, which records who did what to which resource, from where, and whether it was allowed."""
