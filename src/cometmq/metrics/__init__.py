"""Metrics of servers: what a family is, Prometheus' text format, and the port that serves both with health checks."""
