"""The common parts of consumers that pop messages: their base class, and the length of their first waits."""
