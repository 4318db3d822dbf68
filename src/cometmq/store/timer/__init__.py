"""The timer log, which stores delayed messages by the day on which they are due."""
