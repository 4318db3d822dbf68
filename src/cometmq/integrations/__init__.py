"""CometMQ inside other tools: each package has the name of its tool, uses only the client, and needs its own extra."""
