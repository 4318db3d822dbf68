"""The web console, which shows pages about a cluster and live figures, and makes changes with a preview."""
