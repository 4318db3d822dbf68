"""Sending: options, encoding, choice of the queue, attempts and results (``DefaultMQProducerImpl``)."""
