"""The audit job: compares what was produced, stored, consumed and archived."""
