"""The archive reader's process, which the broker starts, sends requests to, and restarts when it ends."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Final, cast

from cometmq.clock import Clock
from cometmq.loop import TaskSet
from cometmq.periodic import Alarm
from cometmq.threads import in_thread
from cometmq.tier.frames import LENGTHS, Message, Open, Question, decode_message, encode_frame

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS: Final = 0.5
_PAUSE_SECONDS_MAX: Final = 30.0
_STOP_SECONDS: Final = 5.0

_UNSENT_BYTES_MAX: Final = 1024 * 1024
"""Size of the requests that a stopped process has not read, above which further requests are not sent."""

OnMessage = Callable[[Message, bytes], None]


class ReaderProcess:
    """Keeps an archive reader running.

    :param on_message: called with each message of the process and its payload.
    :param on_start: called when a process has started, also after an earlier one has ended.
    """

    def __init__(self, opened: Open, on_message: OnMessage, on_start: Callable[[], None], *, clock: Clock) -> None:
        self._opened = opened
        self._on_message = on_message
        self._on_start = on_start
        self._restart = Alarm(self._start_soon, clock=clock)
        self._tasks = TaskSet()
        self._pause_s = _FIRST_PAUSE_SECONDS
        self._link: _Link | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False
        self.restarts = 0
        """Number of processes that have ended unexpectedly."""

    @property
    def pid(self) -> int | None:
        """The ID of the running process."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process."""
        self._start_soon()

    async def stop(self) -> None:
        """End the process."""
        self._stopped = True
        self._restart.close()
        await self._tasks.stop()
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            await in_thread(_end, self._process)

    def send(self, question: Question) -> None:
        """Send a request; it is lost if no process is running."""
        if self._link is not None:
            self._link.send(question)

    def kill(self, reason: str) -> None:
        """Kill a process that is stuck; a new one is started when its socket is closed."""
        _log.error("%s; it is killed", reason)
        if self._process is not None:
            self._process.kill()

    def worked(self) -> None:
        """Record that the process works, so that its next start is not delayed."""
        self._pause_s = _FIRST_PAUSE_SECONDS

    def _start_soon(self) -> None:
        self._tasks.start(self._start())

    async def _start(self) -> None:
        here, there = socket.socketpair()
        with there:
            try:
                self._process = _spawn(there.fileno())
            except OSError as error:
                here.close()
                self._plan_restart(f"the archive reader could not be started: {error}")
                return
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(
                lambda: _Link(self._on_message, self._ended), sock=here
            )
        except BaseException:
            here.close()
            raise
        self._link = link
        link.send(self._opened)
        self._on_start()

    def _ended(self) -> None:
        """Reap the process that has closed its socket, and start a new one."""
        process, self._process, self._link = self._process, None, None
        if self._stopped or process is None:
            return
        self.restarts += 1
        self._tasks.start(in_thread(_end, process))
        self._plan_restart("the archive reader has ended unexpectedly")

    def _plan_restart(self, reason: str) -> None:
        _log.warning("%s; it starts again in %.1f s, and consumers of archived messages wait", reason, self._pause_s)
        self._restart.after(self._pause_s)
        self._pause_s = min(self._pause_s * 2, _PAUSE_SECONDS_MAX)


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "cometmq.tier", str(descriptor)]
    return subprocess.Popen(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, start_new_session=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process without a socket to end; kill it if it does not."""
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _Link(asyncio.Protocol):
    """The broker's end of the process's socket."""

    def __init__(self, on_message: OnMessage, on_end: Callable[[], None]) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have no such base class

    def send(self, request: Open | Question) -> None:
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < _UNSENT_BYTES_MAX:
            transport.write(encode_frame(request))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= LENGTHS.size:
            header_bytes, payload_bytes = LENGTHS.unpack_from(received)
            payload_at = LENGTHS.size + header_bytes
            end = payload_at + payload_bytes
            if len(received) < end:
                return
            message = decode_message(memoryview(received)[LENGTHS.size : payload_at])
            payload = bytes(memoryview(received)[payload_at:end])
            del received[:end]
            try:
                self._on_message(message, payload)
            except Exception:  # one broken answer must not keep the others from being answered
                _log.exception("an answer of the archive reader could not be used")

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._on_end()
