"""Tables that the members of a set copy from their master, and other slaves do not: accounts, quotas, run-time keys."""
