"""TLS on the same port as plain text: options, certificates, contexts, and the transports of both ends."""
