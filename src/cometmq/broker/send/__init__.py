"""Handlers for incoming messages: sends, messages sent back, replies and sequenced batches."""
