"""The turn: everything that one round of the event loop stores, with one write, and answers together."""
