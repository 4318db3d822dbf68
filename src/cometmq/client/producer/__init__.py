"""Producers: sends, retries, batches, requests with replies, transactions (``DefaultMQProducer``)."""
