"""The replay job: it sends an archive's messages to a topic."""
