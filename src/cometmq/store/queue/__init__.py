"""ConsumeQueue: a 20-byte unit for each message in a queue, and reading messages by their units."""
