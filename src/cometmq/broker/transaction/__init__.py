"""Transactions: half messages, their ends, checks at producers (TransactionalMessageService)."""
