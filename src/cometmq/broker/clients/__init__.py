"""Clients' requests about themselves and their groups (ClientManageProcessor, ConsumerManageProcessor)."""
