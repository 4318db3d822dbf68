"""Sets that elect their master: requests to their members, and what the answers mean together."""
