"""Logins and permissions of the console, and protection against cross-site requests."""
