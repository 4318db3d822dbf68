"""The timer log: messages that wait for their time, by day."""
