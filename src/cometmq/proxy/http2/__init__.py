"""HTTP/2 (RFC 9113) of a server without sockets: bytes in, calls and bytes out."""
