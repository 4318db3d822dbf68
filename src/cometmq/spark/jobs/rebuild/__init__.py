"""The rebuild job, which rebuilds a store's consume queues and index from its log."""
