"""The timer log: delayed messages, by day."""
