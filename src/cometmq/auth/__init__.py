"""Accounts and permissions: which account may perform which operations."""
