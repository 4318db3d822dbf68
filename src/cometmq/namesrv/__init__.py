"""The nameserver: routes of topics, liveness of brokers, KV configuration."""
