"""A server of a test: a process that starts, answers and ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.waiting import wait_for


@contextmanager
def server(
    command: Sequence[str], directory: Path, ports: Sequence[int], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server inside the block, from the moment when it listens on its ports; its output is in ``server.log``."""
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        for port in ports:
            wait_for(lambda port=port: _listens(process, port, directory), f"{command[0]} on port {port}")  # type: ignore[misc]
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(process: subprocess.Popen[bytes], port: int, directory: Path) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the server ended: {(directory / 'server.log').read_text()[-2000:]}")
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
