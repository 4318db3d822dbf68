"""The timer log: delayed messages by the day on which they are due."""
