"""The store reader: ``format("rocketmq_store")``, a store's directory as a table."""
