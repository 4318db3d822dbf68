"""The CommitLog: its files, their records, flushing and the checkpoint file."""
