"""The web console: pages about a cluster, live figures, and changes that are shown before they are made."""
