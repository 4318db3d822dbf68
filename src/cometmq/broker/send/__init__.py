"""Processors of messages that come in: sends, messages sent back, replies, numbered batches."""
