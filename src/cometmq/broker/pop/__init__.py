"""POP: the broker hands messages out for a time, and again when they are not acknowledged by then."""
