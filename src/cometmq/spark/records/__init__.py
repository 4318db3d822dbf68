"""Stored records as Arrow columns."""
