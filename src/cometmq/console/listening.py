"""Opens the console's listening socket before anything else is loaded."""

from __future__ import annotations

import errno
import socket

from cometmq.errors import CometMQError, reason_of
from cometmq.message.hosts import format_address, listening_socket


class ConsolePortError(CometMQError):
    """The console cannot listen on its address."""


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address. For port 0, pick a free port.

    :raises ConsolePortError: the port is in use, or the address does not belong to this machine.
    """
    try:
        return listening_socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConsolePortError(
                f"port {port} for the console is in use",
                next_step="choose another one with --port, or --console-port of serve",
            ) from None
        at = format_address(host, port)
        raise ConsolePortError(f"the console cannot listen on {at}: {reason_of(error)}") from None
