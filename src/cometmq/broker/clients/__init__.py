"""Processors of clients' reports and questions about their groups (ClientManageProcessor, ConsumerManageProcessor)."""
