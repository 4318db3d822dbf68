"""The delay job: how exact delayed messages were, what waits, what is stuck."""
