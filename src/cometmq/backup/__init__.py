"""Backups of a broker's store: made while the broker runs, verified, restored."""
