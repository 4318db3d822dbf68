"""Opening a store: recovery makes log, queues and index agree."""
