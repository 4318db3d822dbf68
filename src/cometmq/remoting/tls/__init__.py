"""TLS on the port of plain text: options, certificates, contexts, and the transports of both ends."""
