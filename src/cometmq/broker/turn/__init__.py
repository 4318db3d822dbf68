"""The turn: all that one turn of the event loop stores, written by one write and answered together."""
