"""The table job, which keeps a table of a topic's messages fresh: an archive with columns that are decoded from bodies,
with upkeep, metrics and a live report beside it.
"""
