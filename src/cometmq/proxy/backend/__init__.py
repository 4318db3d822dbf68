"""The brokers behind the endpoint: the broker in this process, or a fleet."""
