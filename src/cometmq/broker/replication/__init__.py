"""Replication: slaves copy a master's commit log byte by byte (Apache's default HA, ``HAService``)."""
