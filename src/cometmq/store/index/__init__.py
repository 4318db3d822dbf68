"""The index, which finds messages by key."""
