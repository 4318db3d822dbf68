"""Measures how long one connection to a server is held up while another one sends it something.

A prober asks a cheap question again and again on a connection of its own. From each wait the time is taken off in
which threads of the server or the prober had work and no processor (``/proc``), so that a busy machine does not count.
If the server is a thread of this process, only the processor time of this thread counts, from question to answer.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.helpers.waiting import block_for

from cometmq.remoting.command import RemotingCommand, decode_command
from cometmq.remoting.frame import FrameDecoder

_BEAT_S: Final = 0.002
_AFTER_S: Final = 0.05
"""The prober goes on so long after the last answer: what a server does later is seen too."""
_QUIET_S: Final = 20.0
"""For an answer to anything."""


class Wire:
    """A blocking connection that speaks frames."""

    def __init__(self, address: str) -> None:
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), _QUIET_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = FrameDecoder()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def post(self, data: bytes) -> None:
        """Send frames; ConnectionError when the server has hung up."""
        self._socket.sendall(data)

    def read(self) -> RemotingCommand:
        """The next frame; ConnectionError when the server hangs up, TimeoutError when nothing comes."""
        while True:
            frame = self._decoder.next()
            if frame is not None:
                return decode_command(frame)
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._decoder.push(data)

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request and wait for its answer; what else comes is dropped."""
        self.post(command.encode())
        while (answer := self.read()).opaque != command.opaque or not answer.is_response:
            pass
        return answer


def exchange(address: str, frames: Sequence[bytes], *, answers: int | None = None) -> list[RemotingCommand]:
    """Send frames on a new connection; the answers that come, fewer where the server hangs up."""
    got: list[RemotingCommand] = []
    with Wire(address) as wire:
        try:
            for frame in frames:
                wire.post(frame)
            while len(got) < (len(frames) if answers is None else answers):
                got.append(wire.read())
        except ConnectionError:
            pass
    return got


def longest_hold_up(
    address: str, pid: int, cheap: RemotingCommand, attack: Callable[[], object], *, thread: int | None = None
) -> float:
    """Seconds that the longest of many cheap requests waited while ``attack`` ran in a thread.

    :param thread: the thread of the server's event loop in this process; its processor time is what counts.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            attack()
        except BaseException as error:
            failed.append(error)

    longest = 0.0
    with Wire(address) as wire:
        wire.ask(cheap)
        attacker = threading.Thread(target=run)
        attacker.start()
        ends: float | None = None
        while ends is None or time.monotonic() < ends:
            longest = max(longest, _waited_s(wire, cheap, pid) if thread is None else _worked_s(wire, cheap, thread))
            if ends is None and not attacker.is_alive():
                ends = time.monotonic() + _AFTER_S
            block_for(_BEAT_S)
        attacker.join()
    if failed:
        raise failed[0]
    return longest


def _waited_s(wire: Wire, cheap: RemotingCommand, pid: int) -> float:
    """Seconds from a question to its answer, without those in which a processor was missing."""
    queued = _queued_s(pid)
    began = time.monotonic()
    wire.ask(cheap)
    waited = time.monotonic() - began
    return waited - (_queued_s(pid) - queued)


def _worked_s(wire: Wire, cheap: RemotingCommand, thread: int) -> float:
    """Seconds of processor time that a thread took from a question to its answer."""
    clock = time.pthread_getcpuclockid(thread)
    began = time.clock_gettime(clock)
    wire.ask(cheap)
    return time.clock_gettime(clock) - began


def _queued_s(pid: int) -> float:
    """Seconds that the server's threads and this one were ready to run and did not.

    Read before and after each question: with :class:`Path` it would cost more than the question itself.
    """
    threads = (f"/proc/{pid}/task/{thread}/schedstat" for thread in os.listdir(f"/proc/{pid}/task"))
    waited_ns = 0
    for path in ("/proc/thread-self/schedstat", *threads):
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # a thread that has ended since they were listed
            continue
        try:
            waited_ns += int(os.read(file, 100).split()[1])
        finally:
            os.close(file)
    return waited_ns / 1e9


def resident_mb(pid: int) -> float:
    """What a process holds in memory, mapped files included, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)
