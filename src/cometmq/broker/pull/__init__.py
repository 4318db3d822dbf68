"""Pulls: PullMessageProcessor, long polling (PullRequestHoldService), filters, and queries of stored messages."""
