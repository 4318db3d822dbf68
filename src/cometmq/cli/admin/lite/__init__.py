"""Commands for lite topics."""
