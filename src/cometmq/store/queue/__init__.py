"""ConsumeQueue: a 20-byte unit for each message of a queue, and reads through these units."""
