"""Versions of the table of tasks."""
