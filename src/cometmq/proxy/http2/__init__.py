"""The server side of HTTP/2 (RFC 9113), independent of sockets."""
