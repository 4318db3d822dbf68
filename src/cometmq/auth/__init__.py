"""Accounts, their permissions, and the decision whether a request is handled."""
