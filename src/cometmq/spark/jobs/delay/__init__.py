"""The delay job, which reports late deliveries, waiting messages and stuck messages."""
