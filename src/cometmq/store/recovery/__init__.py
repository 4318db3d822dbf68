"""Opening a store: from the files as they lie there to a log, queues and an index that agree."""
