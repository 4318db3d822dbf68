"""gRPC over HTTP/2: calls, their messages and statuses, and the server on one port."""
