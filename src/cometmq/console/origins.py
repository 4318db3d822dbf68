"""Origins of pages: scheme, host and port (RFC 6454). They are compared by value instead of as text."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """An origin: the scheme, the host in lower case, and the port, which defaults to the scheme's port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def is_at(self, authority: str) -> bool:
        """Return True if a ``Host`` header contains this host and port. The scheme is ignored, since a proxy may use
        another one.
        """
        return origin_of(f"{self.scheme}://{authority}") == self


def origin_of(text: str) -> Origin | None:
    """Parse an ``Origin`` header or the beginning of an address. Return ``None`` for any other text."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme not in _PORTS or not host or not host.isprintable() or " " in host or parts.username is not None:
        return None
    if parts.path.strip("/") or parts.query or parts.fragment:
        return None
    return Origin(parts.scheme, host, _PORTS[parts.scheme] if port is None else port)
