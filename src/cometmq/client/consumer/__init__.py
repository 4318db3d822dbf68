"""Consumers: push, lite pull and pull; rebalancing, process queues, listeners, offsets (DefaultMQPushConsumer)."""
