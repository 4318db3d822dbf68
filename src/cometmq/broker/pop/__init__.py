"""POP: the broker hands out messages for a limited time.

Messages not acknowledged within that time are handed out again.
"""
