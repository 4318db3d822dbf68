"""``python -m cometmq …`` in processes forked from one that has imported the commands.

A short command spends nine tenths of its time on imports. :class:`CommandServer` starts a Python that imports the
modules of all commands but Spark's; it forks a process for each command, which gets arguments, environment, directory
and descriptors as a new one would, and ends as one does. Only what Python reads when it starts is the server's.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

_REQUEST_BYTES = 100_000
_PIPE_BYTES = 60_000
"""Less than a pipe holds."""
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_")
"""The prefixes of variables that act when Python starts."""


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


class CommandServer:
    """Runs one command at a time; :meth:`close` ends it."""

    def __init__(self) -> None:
        self._environment = _read_at_start(os.environ)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, start_new_session=True
            )

    def takes(self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes) -> bool:
        """Tell whether this command does not notice the difference; those that start servers or Spark do."""
        plain = list(arguments[:1]) not in (["serve"], ["broker"], ["namesrv"], ["demo"], ["pipeline"])
        small = len(stdin) <= _PIPE_BYTES and len(json.dumps([arguments, dict(environment)])) < _REQUEST_BYTES
        return plain and small and _read_at_start(environment) == self._environment

    def run(
        self, arguments: Sequence[str], environment: Mapping[str, str], stdin: bytes, timeout_s: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command that it takes; exit code, stdout and stderr.

        :raises subprocess.TimeoutExpired: it is killed, with this server.
        """
        reader, writer = os.pipe()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            with open(writer, "wb") as pipe:
                pipe.write(stdin)
            code = self.run_with(arguments, environment, (reader, out.fileno(), err.fileno()), timeout_s)
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()

    def run_with(
        self, arguments: Sequence[str], environment: Mapping[str, str], streams: tuple[int, int, int], timeout_s: float
    ) -> int:
        """Run a command that it takes on these descriptors, of which the first is closed; the exit code.

        :raises subprocess.TimeoutExpired: it is killed, with this server.
        """
        request = json.dumps([list(arguments), dict(environment), os.getcwd()]).encode()
        socket.send_fds(self._socket, [request], streams)
        os.close(streams[0])
        self._socket.settimeout(timeout_s)
        try:
            return int(self._socket.recv(100))
        except TimeoutError:
            self.close()
            raise subprocess.TimeoutExpired(list(arguments), timeout_s) from None

    def close(self) -> None:
        """End it with the command that still runs."""
        self._socket.close()
        if self._process.poll() is not None:
            return
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _serve() -> list[str]:
    """Fork for every request and tell how each ended; return in the forks, with the arguments of a command."""
    requests = socket.socket(fileno=os.dup(0))
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES + 1, 3)
        if not request:
            os._exit(0)
        child = os.fork()
        if child:
            for descriptor in descriptors:
                os.close(descriptor)
            _, status = os.waitpid(child, 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        requests.close()
        arguments, environment, directory = json.loads(request)
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        time.tzset()
        return list(arguments)


if __name__ == "__main__":
    import contextlib
    import gc
    import importlib
    import pkgutil

    from cometmq.cli.main import main

    for later in ("rich.console", "rich.table", "uvloop"):
        with contextlib.suppress(ImportError):
            importlib.import_module(later)
    for room in ("messages", "admin"):
        package = importlib.import_module(f"cometmq.cli.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.freeze()  # the garbage collector of a fork would copy all pages, at its end too
    main(_serve())
