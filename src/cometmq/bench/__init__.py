"""Load generator: measures the throughput and latency of sending to and reading from a cluster."""
