"""ConsumeQueue: the 20-byte units for the messages in each queue, and reads of messages through these units."""
