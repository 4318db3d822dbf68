"""Metrics of a broker for Prometheus (``BrokerMetricsManager``), and the port that serves them."""
