"""The replay job: an archive's messages back into a topic."""
