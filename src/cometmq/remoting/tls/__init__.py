"""TLS on the same port as plain text: options, certificates, contexts, and transports."""
