"""Reading beyond retention: the first records and the rate of the archive reader, and of a broker that uses it.

``python -m benchmarks.archive`` writes an archive of messages that do not shrink, in a directory and in an S3 server on
this machine, and reads it through the reader's process as a broker does.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.storage.servers.seaweed import BUCKET, S3Server, seaweed
from tests.tier.archives import QUEUE, make_records, write_archive

from cometmq.storage import open_storage
from cometmq.tier.frames import LENGTHS, Extents, Message, Open, Read, Records, decode_message, encode_frame

_BATCH: Final = 100_000
_WHOLE_BYTES: Final = 1 << 20
_WHOLE_COUNT: Final = 1_024


class Reader:
    """The reader's process, and the broker's end of its socket."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        self._link, there = socket.socketpair()
        with there:
            command = [sys.executable, "-m", "cometmq.tier", str(there.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[there.fileno()])
        self._incoming = self._link.makefile("rb")
        self._link.sendall(encode_frame(Open(url, options, QUEUE.broker)))
        message, _ = self._receive()
        assert isinstance(message, Extents), message

    def read(self, offset: int, count: int, topic: str = QUEUE.topic, queue_id: int = 0) -> Records:
        """Read once."""
        self._link.sendall(encode_frame(Read(1, topic, queue_id, offset, 1 << 62, count, _WHOLE_BYTES)))
        message, _ = self._receive()
        assert isinstance(message, Records), message
        return message

    def memory_bytes(self) -> int:
        """The largest memory that the process has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def close(self) -> None:
        """End the process."""
        self._incoming.close()
        self._link.close()
        self._process.wait()

    def _receive(self) -> tuple[Message, bytes]:
        header, payload = LENGTHS.unpack(self._incoming.read(LENGTHS.size))
        return decode_message(self._incoming.read(header)), self._incoming.read(payload)


@contextmanager
def _storages(root: Path, server: S3Server) -> Iterator[list[tuple[str, str, dict[str, str]]]]:
    """Copy the archive to the S3 server; return a name, URL and options for each place."""
    options = server.options
    there = open_storage(f"s3://{BUCKET}/lake", options)
    for path in root.rglob("*"):
        if path.is_file() and path.stat().st_size:
            there.put(path.relative_to(root).as_posix(), path.read_bytes())
    given = {
        "endpoint": options.endpoint,
        "region": options.region,
        "accessKeyId": options.access_key_id,
        "secretAccessKey": options.secret_access_key,
    }
    yield [("directory", str(root), {}), ("S3 server", f"s3://{BUCKET}/lake", given)]


def measure(url: str, options: dict[str, str], messages: int, rounds: int) -> tuple[float, float, float, int]:
    """Return the ms until the first 32 records, cold and with known footers, the records a second, and the memory."""
    cold, known, rates = [], [], []
    memory = 0
    for turn in range(rounds):
        reader = Reader(url, options)
        began = time.perf_counter()
        reader.read(messages // 2 + turn * 1_000, 32)
        cold.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        reader.read(messages // 4 + turn * 1_000, 32)
        known.append((time.perf_counter() - began) * 1000)
        began, offset = time.perf_counter(), 0
        while offset < messages:
            offset = reader.read(offset, _WHOLE_COUNT).next_offset
        rates.append(messages / (time.perf_counter() - began))
        memory = max(memory, reader.memory_bytes())
        reader.close()
    return statistics.median(cold), statistics.median(known), statistics.median(rates), memory


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--body", type=int, default=512, help="bytes of each body")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "lake")
        for number, first in enumerate(range(0, given.messages, _BATCH)):
            count = min(_BATCH, given.messages - first)
            write_archive(root, [make_records(count, given.body, first=first)], begin=number)
        Path(name, "server").mkdir()
        with seaweed(Path(name, "server")) as server, _storages(root, server) as places:
            print("| archive in | first 32 records, cold | known footer | records/s | memory |\n|---|---|---|---|---|")
            for place, url, options in places:
                cold, known, rate, memory = measure(url, options, given.messages, given.rounds)
                print(f"| {place} | {cold:.0f} ms | {known:.0f} ms | {rate:,.0f} | {memory >> 20} MiB |")


if __name__ == "__main__":
    main()
