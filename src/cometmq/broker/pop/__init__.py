"""POP: the broker hands out messages to a consumer for a limited time.

A message that is not acknowledged within that time is handed out again.
"""
