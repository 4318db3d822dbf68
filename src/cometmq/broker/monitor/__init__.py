"""Metrics of a broker for Prometheus (``BrokerMetricsManager``), and its port for monitoring."""
