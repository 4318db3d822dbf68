"""What the consumers that pop messages have in common: their base class, and how long they wait."""
