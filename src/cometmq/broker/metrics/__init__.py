"""Broker metrics for Prometheus (``BrokerMetricsManager``), and the port that serves them."""
