"""The index: finds messages by key."""
