"""Accounts and permissions: who may do what."""
