"""The rebuild job: consume queues and index rebuilt from a store's log."""
