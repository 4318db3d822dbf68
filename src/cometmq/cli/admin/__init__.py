"""Commands that administer: topics, groups, clusters, and the check of this machine."""
