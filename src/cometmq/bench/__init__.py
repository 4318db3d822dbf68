"""Measures the throughput and latency of a cluster's sends and reads."""
