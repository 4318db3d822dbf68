"""Columns of a table that are decoded from bodies: their types, how values become columns, and how columns change.

Nothing here needs a JVM: tasks decode bodies beside the messages that they write.
"""
