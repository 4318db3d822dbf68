"""The rebuild job: consume queues and index made anew from a store's log."""
