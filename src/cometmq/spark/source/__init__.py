"""The source ``format("rocketmq")``, which reads from brokers in batches and streams."""
