"""The store reader ``format("rocketmq_store")``, which reads a store as a table."""
