"""ConsumeQueue: units of 20 bytes for each queue, and reading by them."""
