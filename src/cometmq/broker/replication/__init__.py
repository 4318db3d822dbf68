"""Replication: a master's commit log, carried to its slaves byte by byte (Apache's default HA, ``HAService``)."""
