"""Producers: sending, retries, batches, requests with replies, and transactions (``DefaultMQProducer``)."""
