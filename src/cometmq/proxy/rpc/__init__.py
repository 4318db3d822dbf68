"""gRPC over HTTP/2: calls, their messages and status, and the server of one port."""
