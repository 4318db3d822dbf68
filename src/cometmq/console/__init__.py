"""The web console: pages about a cluster, live figures, and changes with a preview."""
