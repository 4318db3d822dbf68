"""The nameserver: which brokers live where, which topics they hold, and the KV configuration."""
