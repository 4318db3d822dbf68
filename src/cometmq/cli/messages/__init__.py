"""Commands about messages: produce, consume, message, delay, dlq, transaction."""
