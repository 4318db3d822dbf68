"""Opening a store: log, queues and index are brought into agreement."""
