"""POP: the broker hands out messages for a limited time, and again if they are not acknowledged within that time."""
