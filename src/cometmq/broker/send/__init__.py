"""Processors of incoming messages: sends, messages sent back, replies, numbered batches."""
