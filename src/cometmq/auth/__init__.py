"""Accounts and permissions: decides who may do what."""
