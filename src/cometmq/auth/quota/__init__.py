"""Quotas of accounts, client addresses and groups: their table, their meters, and the check of requests."""
