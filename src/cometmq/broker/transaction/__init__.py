"""Transactions: half messages, commits and rollbacks, checks at producers (TransactionalMessageService)."""
