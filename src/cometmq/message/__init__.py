"""Messages: the stored record, properties, ids, flags, batches and compression (no sockets, no files)."""
