"""Logins and permissions of the console, and its protection against requests that other sites forge."""
