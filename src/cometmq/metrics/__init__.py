"""Server metrics: metric families, Prometheus' text format, and the HTTP port for metrics and health checks."""
