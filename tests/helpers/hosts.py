"""Addresses of this machine."""

from __future__ import annotations

import socket
from pathlib import Path

_LINK = "20"
"""The scope of link-local addresses in the table of the kernel."""


def link_local() -> str:
    """An address with a zone; empty if there is none."""
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.exists() else ():
        digits, _, _, scope, _, interface = line.split()
        if scope == _LINK:
            return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))}%{interface}"
    return ""
