"""Quotas of accounts, client addresses and groups: their table, their meters, and the checks of requests."""
