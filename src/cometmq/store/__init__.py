"""The store: CommitLog, ConsumeQueue, IndexFile and the tables beside them."""
