"""Python processes forked from one that has imported CometMQ's commands and servers.

A short command spends nine tenths of its time on imports, a server of a test more than half. :func:`start` takes what
``subprocess.Popen`` does. Where it can, it asks a process that has imported the modules of all commands but Spark's to
fork. A fork has a process id of its own, arguments, environment, directory and streams as a new process would, a
session of its own if that is asked for, and ends as one does. What Python reads when it starts is that of the process
that forks: where the environment differs in that, a new Python starts. So are the defaults of servers below the home
directory (``kvConfigPath``, ``storePathRootDir``): tests name these.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import takewhile
from typing import IO, Any

_REQUEST_BYTES = 100_000
_READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "COMETMQ_CORE")
"""The prefixes of variables that act when Python starts, or imports."""
_OPTIONS = frozenset({"-X", "dev", "-W", "ignore"})
"""Options of Python that commands have; for each choice of them there is a process that forks."""

Stream = int | IO[Any] | None


def start(
    command: Sequence[str],
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
    imported: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a command, as a fork when it is this Python with a module or a text that it is to run.

    A fork without a session of its own ends with the process that forks.

    :param imported: modules that this process imports in place of those of all commands.
    """
    environment = dict(os.environ if env is None else env)
    options = tuple(takewhile(lambda word: word not in ("-m", "-c"), command[1:]))
    if command[0] == sys.executable and all(word in _OPTIONS for word in options):
        words = command[1 + len(options) :]
        data = json.dumps([words, environment, os.fspath(cwd or os.getcwd()), start_new_session]).encode()
        requests, environment_there = _process_that_forks(options, tuple(imported))
        if _read_at_start(environment) == environment_there and len(data) < _REQUEST_BYTES:
            return _Fork(requests, command, data, (stdin, stdout, stderr))
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, start_new_session=start_new_session
    )


def run(
    command: Sequence[str], *, stdin: bytes = b"", env: Mapping[str, str] | None = None, timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end.

    :raises subprocess.TimeoutExpired: it is killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=env)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(stdin)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


class _Fork(subprocess.Popen[bytes]):
    """A fork of the process that forks, which waits for it and tells its exit code."""

    def __init__(
        self, requests: socket.socket, command: Sequence[str], request: bytes, streams: tuple[Stream, Stream, Stream]
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        with ExitStack() as theirs:
            descriptors = [-1, -1, -1]
            ours: list[IO[bytes] | None] = [None, None, None]
            for number, stream in enumerate(streams):
                if stream == subprocess.PIPE:
                    reader, writer = os.pipe()
                    kept, given = (writer, reader) if number == 0 else (reader, writer)
                    ours[number] = open(kept, "wb" if number == 0 else "rb", buffering=-1)  # noqa: SIM115
                    theirs.callback(os.close, given)
                    descriptors[number] = given
                elif stream == subprocess.DEVNULL:
                    descriptors[number] = os.open(os.devnull, os.O_RDWR)
                    theirs.callback(os.close, descriptors[number])
                elif stream == subprocess.STDOUT:
                    descriptors[number] = descriptors[1]
                else:
                    descriptors[number] = (
                        number if stream is None else stream if isinstance(stream, int) else stream.fileno()
                    )
            self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with status:
                socket.send_fds(requests, [request], [*descriptors, status.fileno()])
        self.stdin, self.stdout, self.stderr = ours
        self.pid = int(self._status.recv(100))

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            ended = select.poll()  # a test may have more descriptors than select() takes
            ended.register(self._status, select.POLLIN)
            if ended.poll(0):
                return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        :raises subprocess.TimeoutExpired: it still runs.
        """
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(100))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._status.close()
        return self.returncode

    def __del__(self) -> None:
        self._status.close()


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


@cache
def _process_that_forks(options: tuple[str, ...], imported: tuple[str, ...]) -> tuple[socket.socket, dict[str, str]]:
    """Where it takes requests, and what it has read of its environment; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *options, __file__, *imported],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    atexit.register(end)
    return ours, _read_at_start(os.environ)


class _Forks:
    """Forks for each request and tells how each fork ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._selector = selectors.PollSelector()  # it has no descriptor, which the forks would have to close
        self._selector.register(requests, selectors.EVENT_READ)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        """By the pidfd of a fork its process id, and where its exit code is told."""
        self._told: dict[socket.socket, int] = {}
        """Forks whose exit code was told: nobody else gets their process ids before that is read."""

    def serve(self) -> list[str]:
        """Return in the forks, with the arguments of Python."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.fileobj, int):
                    self._tell(key.fileobj)
                elif key.fileobj is self._requests:
                    if (words := self._fork()) is not None:
                        return words
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._forget(key.fileobj)

    def _fork(self) -> list[str] | None:
        request, descriptors, _, _ = socket.recv_fds(self._requests, _REQUEST_BYTES, 4)
        if not request:
            os._exit(0)
        *streams, status_fd = descriptors
        status = socket.socket(fileno=status_fd)
        child = os.fork()
        if child:
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(child)
            self._running[pidfd] = child, status
            self._selector.register(pidfd, selectors.EVENT_READ)
            return None
        words, environment, directory, own_session = json.loads(request)
        if own_session:
            os.setsid()
        status.send(str(os.getpid()).encode())
        for target, descriptor in enumerate(streams):
            os.dup2(descriptor, target)
        for opened in (self._requests, status, *self._told, *(each for _, each in self._running.values())):
            opened.detach()
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        time.tzset()
        return list(words)

    def _tell(self, pidfd: int) -> None:
        child, status = self._running.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        self._told[status] = child
        with suppress(BrokenPipeError):
            status.send(str(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status).encode())
        self._selector.register(status, selectors.EVENT_READ)

    def _forget(self, status: socket.socket) -> None:
        self._selector.unregister(status)
        status.close()
        os.waitpid(self._told.pop(status), 0)


if __name__ == "__main__":
    import contextlib
    import gc
    import importlib
    import pkgutil
    import runpy

    imported = sys.argv[1:]
    for later in imported or (
        "rich.console",
        "rich.table",
        "uvloop",
        "cometmq.cli.main",
        "cometmq.broker.controller",
        "cometmq.namesrv.server",
    ):
        with contextlib.suppress(ImportError):
            importlib.import_module(later)
    for room in () if imported else ("messages", "admin", "servers"):
        package = importlib.import_module(f"cometmq.cli.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    gc.freeze()  # the garbage collector of a fork would copy all pages, at its end too
    option, text, *arguments = _Forks(socket.socket(fileno=os.dup(0))).serve()
    sys.path[0] = ""
    sys.argv = [option, *arguments]
    if option == "-m":
        runpy.run_module(text, run_name="__main__", alter_sys=True)
    else:
        exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
