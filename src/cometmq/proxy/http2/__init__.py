"""The server side of HTTP/2 (RFC 9113) without sockets: bytes in, calls and bytes out."""
