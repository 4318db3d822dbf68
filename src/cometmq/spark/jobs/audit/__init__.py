"""The audit job, which compares the produced, stored, consumed and archived messages of a topic."""
