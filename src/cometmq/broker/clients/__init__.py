"""Requests of clients about themselves and their groups (ClientManageProcessor, ConsumerManageProcessor)."""
