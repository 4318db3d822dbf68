"""The replay job, which sends an archive's messages to a topic."""
