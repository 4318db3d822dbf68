"""The turn: everything that the broker stores in one round of the event loop, with one write, and answers together."""
