"""The brokers behind the endpoint: the one of this process, or those of a fleet."""
