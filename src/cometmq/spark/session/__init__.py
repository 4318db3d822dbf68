"""Spark sessions: requirements, JVM start, and handling of Ctrl-C."""
