"""Commands for messages: produce, consume, message, delay, dlq, transaction."""
