"""Spark sessions: requirements, start of the JVM, Ctrl-C."""
