"""Administration commands for topics, groups, clusters and accounts, and ``doctor``, which checks this machine."""
