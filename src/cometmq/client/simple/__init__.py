"""Consumers that receive messages for a limited time and acknowledge each of them (POP, ``SimpleConsumer``)."""
