"""Quotas for accounts, client addresses and groups: the quota table, the meters and the request checks."""
