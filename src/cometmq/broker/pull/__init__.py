"""Pulls: PullMessageProcessor, long polling (PullRequestHoldService), filters, and queries for stored messages."""
