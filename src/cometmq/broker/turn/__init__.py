"""The turn: all that one round of the event loop stores, written by one write and answered together."""
