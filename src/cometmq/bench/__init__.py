"""Measures how many messages a cluster takes and gives, and how long that takes."""
