"""The brokers behind the endpoint: that of this process, or a fleet."""
