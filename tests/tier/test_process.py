"""The process of the archive reader, as a broker starts it: its answers, its memory, its end."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tier.archives import QUEUE, make_records, write_archive

from cometmq.tier.frames import LENGTHS, Extents, FindPosition, Message, Open, Read, Records, Unreadable, decode_message
from cometmq.tier.frames import encode_frame as encode

MEBIBYTE = 1024 * 1024
MEMORY_BYTES_MAX = 640 * MEBIBYTE
END_SECONDS = 10.0


class Reader:
    """A running archive reader, and the broker's end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self.process = process
        self.link = link
        self._incoming = link.makefile("rb")

    def send(self, request: Open | Read | FindPosition) -> None:
        self.link.sendall(encode(request))

    def receive(self) -> tuple[Message, bytes]:
        header, payload = LENGTHS.unpack(self._incoming.read(LENGTHS.size))
        return decode_message(self._incoming.read(header)), self._incoming.read(payload)

    def close(self) -> None:
        """Close the socket, as a broker does at its end."""
        self._incoming.close()
        self.link.close()

    def peak_bytes(self) -> int:
        """The largest memory that the process has had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024


@contextmanager
def started(url: str) -> Iterator[Reader]:
    here, there = socket.socketpair()
    with there:
        command = [sys.executable, "-m", "cometmq.tier", str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()])
    reader = Reader(process, here)
    try:
        reader.send(Open(url, {}, QUEUE.broker))
        yield reader
    finally:
        reader.close()
        process.wait(END_SECONDS)


def test_it_reports_the_queues_answers_and_ends_with_the_socket(tmp_path: Path) -> None:
    records = make_records(1_000)
    write_archive(tmp_path, [records])
    with started(str(tmp_path)) as reader:
        message, _ = reader.receive()
        assert isinstance(message, Extents)
        assert [(extent.topic, extent.first, extent.end) for extent in message.queues] == [("orders", 0, 1_000)]
        reader.send(Read(7, "orders", 0, 10, 100, 5, 1 << 20))
        assert reader.receive() == (Records(7, 5, 15), b"".join(records[10:15]))
        reader.send(FindPosition(8, 0))
        assert reader.receive() == (Records(8, 1, 1), records[0])
    assert reader.process.returncode == 0


def test_it_ends_quietly_with_a_broker_that_has_not_read_its_answers(tmp_path: Path) -> None:
    write_archive(tmp_path, [make_records(1_000)])
    with started(str(tmp_path)) as reader:
        reader.receive()
        for number in range(100):
            reader.send(Read(number, "orders", 0, 0, 1_000, 1_000, 1 << 20))
        reader.receive()
    assert reader.process.returncode == 0


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    with started(str(tmp_path / "absent")) as reader:
        message, _ = reader.receive()
        assert isinstance(message, Unreadable)
        assert (message.may_pass, "create one: cometmq pipeline archive" in message.reason) == (False, True)


def test_its_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    """Three times the memory that it may keep, read by two consumers at different places."""
    for number in range(12):
        write_archive(tmp_path, [make_records(400, 120_000, first=number * 400)], begin=number)
    with started(str(tmp_path)) as reader:
        reader.receive()
        places = [0, 2_400]
        while waiting := [at for at, offset in enumerate(places) if offset < 4_800]:
            for at in waiting:
                reader.send(Read(at, "orders", 0, places[at], 4_800, 32, 1 << 20))
            for _ in waiting:
                message, _ = reader.receive()
                assert isinstance(message, Records)
                places[message.number] = message.next_offset
        print("PEAK", reader.peak_bytes() >> 20)
        assert reader.peak_bytes() < MEMORY_BYTES_MAX
