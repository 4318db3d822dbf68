"""gRPC over HTTP/2: calls, messages and statuses, and a server."""
