"""Connections that tasks share."""

from __future__ import annotations

import socket
import subprocess
import sys

BORROWS = """
import sys
from cometmq.remoting.security import PLAIN
from cometmq.client.blocking.connections import borrowed

with borrowed(sys.argv[1], PLAIN, 5.0):
    pass
"""


def test_a_process_that_ends_leaves_no_connection_open() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = "{}:{}".format(*listener.getsockname())
        command = [sys.executable, "-W", "always::ResourceWarning", "-c", BORROWS, address]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""
