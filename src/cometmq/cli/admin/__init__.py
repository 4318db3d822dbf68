"""Administration commands: topics, groups, clusters, accounts, and the check of this machine."""
