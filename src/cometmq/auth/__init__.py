"""Accounts and permissions, which decide who may do what."""
