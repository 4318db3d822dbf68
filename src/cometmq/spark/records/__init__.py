"""Decodes stored records into Arrow columns."""
