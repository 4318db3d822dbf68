"""Measures an archive of many messages and its key index: time, processor time, memory and bytes.

    python -m benchmarks.scale.archived 100000000 --directory=data       half an hour on two quiet cores, 25 GB
    python -m benchmarks.scale.archived 1000000                          two minutes

Log files of 1 GiB are written, archived with `cometmq pipeline archive --store`, and deleted, a few at a time: so the
disk holds one part of the log, the archive, the index, and what Spark moves between tasks. Then one run of `cometmq
pipeline key-index` indexes everything, and `--find` looks up eleven keys. The messages are in 16 queues of one topic.
Each has a body of 64 bytes, and a unique key and a key that end with 16 random digits. Their store times are 10,000 a
second. Prints one JSON line for each part. Memory is the most that all processes of a part have at one moment, without
the page cache. `--place` names a directory that is kept; `--only archive` and `--only index` then measure one of both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from benchmarks.machine import anonymous_mb, ended_by_signals
from benchmarks.rounds import say
from benchmarks.spark.cpu_meter import CpuMeter, descendants

from cometmq.checksum import crc32
from cometmq.message.layout import RECORD
from cometmq.message.record import BLANK_MAGIC, CRC_MASK, encode_record
from cometmq.message.record_arrays import dtype_of
from cometmq.store.log.mapped_file import file_name

TOPIC: Final = "Orders"
QUEUES: Final = 16
FILE_BYTES: Final = 1 << 30
FILES_AT_ONCE: Final = 4
"""Files of the log that are archived by one run."""
PER_MS: Final = 10
FIRST_MS: Final = 1_790_000_000_000
"""Store time of the first message."""
FOUND: Final = 11
"""Keys that are looked up."""
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
_DIGITS: Final = 16
_AT_ONCE: Final = 50_000
"""Messages that are made at once."""
_KEY, _UNIQUE = b"K" * _DIGITS, b"U" * _DIGITS
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def template() -> bytes:
    """The record of a message, whose random digits are marked."""
    body = b'{"order":"%s","amount":1250,"currency":"EUR"}' % _KEY
    return encode_record(
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=body.ljust(64),
        properties_text=f"KEYS\x01order-{_KEY.decode()}\x02UNIQ_KEY\x017F0000010A2B18B4{_UNIQUE.decode()}\x02TAGS\x01a\x02",
        born_timestamp=0,
        born_host=_HOST,
        store_timestamp=0,
        store_host=_HOST,
    )


class Log:
    """Writes the log of a store, file by file."""

    def __init__(self, messages: int, file_bytes: int = FILE_BYTES) -> None:
        self._record = np.frombuffer(template(), np.uint8)
        self._messages = messages
        self._file_bytes = file_bytes
        self.of_file: Final = (file_bytes - 8) // len(self._record)
        """Messages in a file."""
        self.files: Final = -(-messages // self.of_file)
        self._wanted = {messages * number // FOUND for number in range(FOUND)}
        self.keys: Final[list[str]] = []
        """Keys of the messages that are looked up."""

    def write(self, directory: Path, number: int) -> None:
        """Write one file."""
        first, end = number * self.of_file, min((number + 1) * self.of_file, self._messages)
        start = number * self._file_bytes
        with (directory / file_name(start)).open("wb") as file:
            for begin in range(first, end, _AT_ONCE):
                numbers = np.arange(begin, min(begin + _AT_ONCE, end))
                offsets = start + (numbers - first) * len(self._record)
                file.write(self._rows(numbers, offsets).data)
            if end < self._messages:
                left = self._file_bytes - file.tell()
                file.write(left.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True))
                file.truncate(self._file_bytes)

    def _rows(self, numbers: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        rows = np.tile(self._record, (len(numbers), 1))
        fields: Any = rows[:, : RECORD.size].view(dtype_of(RECORD))[:, 0]
        fields["queue_id"], fields["queue_offset"] = numbers % QUEUES, numbers // QUEUES
        fields["physical_offset"] = offsets
        fields["born_timestamp"] = fields["store_timestamp"] = FIRST_MS + numbers // PER_MS
        random = np.random.default_rng(int(numbers[0]))
        for mark in (_KEY, _UNIQUE):
            digits = _HEX[random.integers(0, 16, (len(numbers), _DIGITS), np.uint8)]
            for at in _places(self._record.tobytes(), mark):
                rows[:, at : at + _DIGITS] = digits
            if mark == _KEY:
                wanted = self._wanted.intersection(range(int(numbers[0]), int(numbers[-1]) + 1))
                self.keys.extend(f"order-{digits[at - numbers[0]].tobytes().decode()}" for at in sorted(wanted))
        bodies = rows[:, RECORD.size : RECORD.size + 64].copy()
        fields["body_crc"] = [crc32(body) & CRC_MASK for body in bodies]
        return rows


def _places(record: bytes, mark: bytes) -> Iterator[int]:
    at = record.find(mark)
    while at >= 0:
        yield at
        at = record.find(mark, at + 1)


class Meter:
    """Time, processor time and memory of the programs that a part of the benchmark starts."""

    def __init__(self) -> None:
        self._cpu = CpuMeter()
        self._cpu.watch()
        self._most_mb = 0.0
        threading.Thread(target=self._look, name="memory", daemon=True).start()

    def _look(self) -> None:
        while True:
            found = 0.0
            for pid in descendants():
                with suppress(OSError, StopIteration):  # it has ended
                    found += anonymous_mb(pid)
            self._most_mb = max(self._most_mb, found)
            time.sleep(0.5)

    def run(self, *arguments: str) -> tuple[dict[str, float], str]:
        """Run ``cometmq pipeline``; return its figures, and what it printed.

        :raises RuntimeError: it failed.
        """
        began, before, self._most_mb = time.monotonic(), self._cpu.seconds(), 0.0
        command = [sys.executable, "-m", "cometmq", "pipeline", *arguments, "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments}: {done.stdout}{done.stderr}")
        spent = sum(self._cpu.seconds().values()) - sum(before.values())
        figures = {"s": time.monotonic() - began, "processor_s": spent, "memory_mb": self._most_mb}
        return figures, done.stdout


def archive(meter: Meter, log: Log, place: Path) -> None:
    """Write the log and archive it, a few files at a time."""
    store, total = place / "store", {"s": 0.0, "processor_s": 0.0, "memory_mb": 0.0}
    written = 0
    for first in range(0, log.files, FILES_AT_ONCE):
        (store / "commitlog").mkdir(parents=True)
        for number in range(first, min(first + FILES_AT_ONCE, log.files)):
            log.write(store / "commitlog", number)
        written += sum(file.stat().st_size for file in (store / "commitlog").iterdir())
        to = ("archive", "--store", str(store), "--broker-name", "b", "--to", str(place / "lake"))
        figures, _ = meter.run(*to)
        shutil.rmtree(store)
        total = {
            name: max(total[name], value) if name == "memory_mb" else total[name] + value
            for name, value in figures.items()
        }
        say(part="archive", runs=first // FILES_AT_ONCE + 1, messages=_total(place / "lake"), **figures)
    (place / "keys.json").write_text(json.dumps(log.keys), encoding="utf-8")
    say(part="archive", messages=_total(place / "lake"), log_mb=written / 1e6, **total, **_size(place / "lake"))


def _total(lake: Path) -> int:
    from cometmq.spark.archives.log import ArchiveLog

    return sum(of.rows for of in ArchiveLog(lake).queues())


def _size(directory: Path) -> dict[str, float]:
    files = list(directory.rglob("*.parquet"))
    return {"files": len(files), "mb": sum(file.stat().st_size for file in files) / 1e6}


def index(meter: Meter, place: Path) -> None:
    """Index the archive in one run, and look up keys."""
    both = ("--archive", str(place / "lake"), "--index", str(place / "index"))
    figures, printed = meter.run("key-index", *both)
    report = json.loads(printed)
    say(part="key index", messages=report["messages"], keys=report["keys"], **figures, **_size(place / "index"))
    keys = json.loads((place / "keys.json").read_text(encoding="utf-8"))
    for key in keys:
        figures, printed = meter.run("key-index", *both, "--find", key, "--topic", TOPIC)
        [found] = json.loads(printed)
        say(part="find", key=key, found=key.removeprefix("order-") in found["body"], **figures)
    figures, _ = meter.run("key-index", *both, "--dry-run")
    say(part="nothing new", **figures)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", type=int)
    parser.add_argument("--directory", type=Path, help="a disk with enough space; by default that of $TMPDIR")
    parser.add_argument("--place", type=Path, help="a directory that is kept, instead of a temporary one")
    parser.add_argument("--only", choices=("archive", "index"), help="measure only this")
    options = parser.parse_args(arguments)
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="cometmq-archived-", dir=options.directory) as name:
        meter, place = Meter(), options.place or Path(name)
        if options.only != "index":
            archive(meter, Log(options.messages), place)
        if options.only != "archive":
            index(meter, place)


if __name__ == "__main__":
    main()
