"""Opening a store: recovery makes its log, queues and index consistent."""
