"""The console's logins and permissions, and its protection against cross-site requests."""
