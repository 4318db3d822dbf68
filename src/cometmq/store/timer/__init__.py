"""The timer log, which stores delayed messages by due day."""
