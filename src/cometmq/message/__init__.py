"""Messages: stored records, properties, ids, flags, batches and compression. No module here uses sockets or files."""
