"""The CommitLog: its files and records, flushing, and the checkpoint file."""
