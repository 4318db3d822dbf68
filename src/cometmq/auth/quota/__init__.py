"""Quotas for accounts, client addresses and groups: the table, the meters, and the checks of requests."""
