"""A Python for Spark that is forked from one which has imported what Spark's processes need.

Spark starts a Python process for each kind of planning, for each stream, and for the workers of tasks. Each imports
pandas, Arrow, PySpark and CometMQ before it does a little work, which was more than a third of what tests of Spark
worked. A process of this module imports them once. :func:`forking_python` gives the program that Spark starts in
place of Python: it hands its arguments, environment, directory and descriptors to that process, which forks. It ends
as the fork ends, and the fork is killed when it is. What is no module of PySpark or of the tests it runs by the Python
itself, and everything when that process is gone.

The standalone cluster and the sessions of ``test_environment.py`` have Pythons that start as everywhere else.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import io
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

_IMPORTED = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "cometmq.spark.data_source",
)
_MOST_BYTES = 200_000
"""Of arguments and environment."""
_LAUNCHER = """#!{python} -IS
import array, os, sys
words = sys.argv[1:]
if words[:1] != ["-m"] or not words[1].startswith(("pyspark.", "tests.")):
    os.execv({python!r}, [{python!r}, *words])
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket
server = socket(AF_UNIX, SOCK_SEQPACKET)
try:
    server.connect({address!r})
except OSError:
    os.execv({python!r}, [{python!r}, *words])
request = repr((words, dict(os.environ), os.getcwd())).encode()
server.sendmsg([request], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", [0, 1, 2]))])
for descriptor in (0, 1, 2):
    os.close(descriptor)
code = int(server.recv(100) or 1)
if code < 0:
    os.kill(os.getpid(), -code)
os._exit(code & 255)
"""


@cache
def forking_python() -> Path:
    """The program that Spark starts in place of Python; what it needs runs until this process ends."""
    place = Path(tempfile.mkdtemp(prefix="python-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    address = place / "socket"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.forking", str(address)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(_end, process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    program = place / "python"
    program.write_text(_LAUNCHER.format(python=sys.executable, address=str(address)))
    program.chmod(0o755)
    return program


def _end(process: subprocess.Popen[bytes]) -> None:
    process.communicate()  # it ends with its standard input


class _Forks:
    """Forks for each request, tells the exit code of each fork, and kills those whose launcher is gone."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        self._running: dict[int, tuple[socket.socket, int]] = {}
        """The launcher and the pidfd of each fork."""

    def serve(self) -> list[str]:
        """Return in the forks, with the arguments that Python would have got."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    for child in self._running:
                        _kill(child)
                    os._exit(0)
                if key.fileobj is self._listener:
                    if (words := self._fork()) is not None:
                        return words
                elif key.data in self._running:
                    self._ended(key.data)

    def _fork(self) -> list[str] | None:
        launcher, _ = self._listener.accept()
        request, descriptors, _, _ = socket.recv_fds(launcher, _MOST_BYTES, 3)
        if not request:
            launcher.close()
            return None
        child = os.fork()
        if child:
            with contextlib.suppress(OSError):
                os.setpgid(child, child)  # as the fork does: whoever is first
            for descriptor in descriptors:
                os.close(descriptor)
            pidfd = os.pidfd_open(child)
            self._running[child] = launcher, pidfd
            self._selector.register(launcher, selectors.EVENT_READ, child)
            self._selector.register(pidfd, selectors.EVENT_READ, child)
            return None
        os.setpgid(0, 0)
        words, environment, directory = ast.literal_eval(request.decode())
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        self._selector.close()
        for opened in (self._listener, launcher, *(each for pair in self._running.values() for each in pair)):
            os.close(opened if isinstance(opened, int) else opened.detach())
        before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        time.tzset()
        given = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
        sys.path[:] = [directory, *given, *(entry for entry in sys.path[1:] if entry not in before)]
        return list(words)

    def _ended(self, child: int) -> None:
        launcher, pidfd = self._running.pop(child)
        _kill(child)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            launcher.send(str(os.waitstatus_to_exitcode(status)).encode())
        for opened in (launcher, pidfd):
            self._selector.unregister(opened)
        launcher.close()
        os.close(pidfd)


def _kill(child: int) -> None:
    """End a fork with its group, or what a fork that has ended left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def main() -> None:
    """Import, then fork until the standard input ends; go on as another module in each fork."""
    for module in _IMPORTED:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(sys.argv[1])
        listener.listen(100)
        print("ready", flush=True)
        gc.freeze()
        words = _Forks(listener).serve()
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(line_buffering=True)  # Spark asks Python for no buffers
    sys.argv = [words[1], *words[2:]]
    sys.modules.pop(words[1], None)  # it is to run, and runpy would warn
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
