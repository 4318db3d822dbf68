"""Sending: options, encoding, queue selection, attempts and results (``DefaultMQProducerImpl``)."""
