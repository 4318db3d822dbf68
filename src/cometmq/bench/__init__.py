"""Load generator: measures the throughput and latency of sending messages to a cluster and reading them."""
