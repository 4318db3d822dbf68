"""The source: ``format("rocketmq")`` in batches and streams, from brokers."""
