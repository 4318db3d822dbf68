"""Server metrics: metric families, Prometheus' text format, and the port that serves metrics and health checks."""
