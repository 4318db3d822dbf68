"""Consumers of lite topics (RocketMQ 5.5): thousands of small topics inside one parent topic."""
