"""The CommitLog: its files, records, flush, checkpoint, retention."""
