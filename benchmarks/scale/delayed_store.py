"""Writes a store with many delayed messages, as a broker has it whose log no longer contains most of them.

The broker has copied each message into the files of its day (:mod:`cometmq.store.timer.day`), and retention has deleted
all files of the log but the last. The records are those of the broker, from its own encoder, in which only numbers
differ; the position and the queues are saved by the broker's own code.
"""

from __future__ import annotations

import datetime
import os
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cometmq.broker.delay.parked_message import parked
from cometmq.broker.turn.inner_message import InnerMessage
from cometmq.checksum import crc32
from cometmq.message.layout import RECORDS
from cometmq.message.properties import TIMER_DELIVER_MS
from cometmq.message.record import encode_record
from cometmq.message.record_arrays import dtype_of
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.log.mapped_file import file_name
from cometmq.store.message_store import MessageStore
from cometmq.store.timer.day import DAY_MS
from cometmq.store.timer.log import TimerLog
from cometmq.store.timer.position import LogEnd, TimerPosition
from cometmq.store.timer.unit import MESSAGE, UNIT_BYTES, UNIT_DTYPE, text_hash

TOPIC: Final = "Timers"
BODY: Final = bytes(128)
HOST: Final = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
FILE_BYTES: Final = 1 << 30
AT_ONCE: Final = 100_000
"""Messages that are written at once, with 35 MB of records."""
WRITTEN_PER_S: Final = 150_000
"""Messages that are written each second on a machine that is not quite quiet."""
LONGEST_S: Final = 3 * 365 * 86_400
"""The longest delay."""
DUE_PER_S: Final = 12_000
"""Messages that are due in the first second, if there are so many."""
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_DIGITS: Final = 13
"""Of a time in milliseconds, until the year 2286."""
_MARKED_MS: Final = 1_234_567_890_123
"""A due time whose digits are found in a record."""


def _template() -> bytes:
    """The record of a delayed message."""
    text = f"{TIMER_DELIVER_MS}\x01{_MARKED_MS}\x02"
    message = parked(InnerMessage(TOPIC, 0, BODY, text, 0, 0, 0, HOST), _MARKED_MS)
    return encode_record(
        topic=message.topic,
        queue_id=message.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=message.body,
        properties_text=message.properties,
        born_timestamp=0,
        born_host=HOST,
        store_timestamp=0,
        store_host=HOST,
    )


class DelayedStore:
    """A store below ``root``, to which delayed messages are added in the order in which they were sent.

    :param count: the number of messages that it will have; they need a file of the log for each three million.
    """

    def __init__(self, root: Path, count: int) -> None:
        self._root = root
        self._timer = root / "comet" / "timer"
        self._timer.mkdir(parents=True)
        self._record = np.frombuffer(_template(), np.uint8)
        at = self._record.tobytes().find(str(_MARKED_MS).encode())
        self._digits_at = at, self._record.tobytes().find(str(_MARKED_MS).encode(), at + 1)
        self._of_file = (FILE_BYTES - 8) // len(self._record)
        self._last_file = (count - 1) // self._of_file
        self._data_ends: dict[int, int] = {}
        """Bytes in the data file of each day."""
        self._sent_ms = int(time.time() * 1000)
        self.count = 0

    def add(self, due_ms: npt.NDArray[np.int64]) -> None:
        """Add messages that are due at these times, in milliseconds since 1970."""
        for begin in range(0, len(due_ms), AT_ONCE):
            self._add(due_ms[begin : begin + AT_ONCE])

    def _add(self, due_ms: npt.NDArray[np.int64]) -> None:
        serials = np.arange(self.count, self.count + len(due_ms))
        offsets = serials // self._of_file * FILE_BYTES + serials % self._of_file * len(self._record)
        rows = np.tile(self._record, (len(due_ms), 1))
        fields: Any = rows[:, : RECORDS[0].size].view(dtype_of(RECORDS[0]))[:, 0]
        fields["queue_offset"], fields["physical_offset"] = serials, offsets
        fields["born_timestamp"] = fields["store_timestamp"] = self._sent_ms
        left = due_ms.copy()
        for place in range(_DIGITS - 1, -1, -1):
            for digits_at in self._digits_at:
                rows[:, digits_at + place] = left % 10 + ord("0")
            left //= 10
        self.count += len(due_ms)
        self._write_log(rows[serials // self._of_file == self._last_file])
        self._write_days(rows, serials, due_ms)

    def _write_log(self, rows: npt.NDArray[np.uint8]) -> None:
        directory = self._root / "commitlog"
        directory.mkdir(exist_ok=True)
        with (directory / file_name(self._last_file * FILE_BYTES)).open("ab") as file:
            file.write(rows.tobytes())

    def _write_days(
        self, rows: npt.NDArray[np.uint8], serials: npt.NDArray[np.int64], due_ms: npt.NDArray[np.int64]
    ) -> None:
        order = np.argsort(due_ms // DAY_MS, kind="stable")
        rows, serials, due_ms = rows[order], serials[order], due_ms[order]
        units = np.zeros(len(rows), UNIT_DTYPE)
        units["due"], units["serial"] = due_ms, serials
        units["topic"], units["kind"], units["size"] = text_hash(TOPIC), MESSAGE, len(self._record)
        units["crc"] = [crc32(row) for row in rows]
        numbers, begins = np.unique(due_ms // DAY_MS, return_index=True)
        ends = [*begins[1:].tolist(), len(rows)]
        for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
            data_end = self._data_ends.get(number, 0)
            units["at"][begin:end] = data_end + np.arange(end - begin) * len(self._record)
            self._data_ends[number] = data_end + (end - begin) * len(self._record)
        raw = units.view(np.uint8).reshape(-1, UNIT_BYTES)
        units["check"] = [crc32(row) for row in np.ascontiguousarray(raw[:, :-4])]
        for number, begin, end in zip(numbers.tolist(), begins.tolist(), ends, strict=True):
            name = datetime.date.fromordinal(_EPOCH + number).isoformat()
            for suffix, part in (("data", rows[begin:end]), ("index", units[begin:end])):
                with (self._timer / f"{name}.{suffix}").open("ab") as file:
                    file.write(part.tobytes())

    def close(self) -> None:
        """Complete the store: no message has been delivered so far."""
        os.truncate(self._root / "commitlog" / file_name(self._last_file * FILE_BYTES), FILE_BYTES)
        MessageStore.open(StoreConfig(store_path_root_dir=str(self._root))).close_now()
        last = self.count - 1
        end = last // self._of_file * FILE_BYTES + (last % self._of_file + 1) * len(self._record)
        timer = TimerLog(self._timer, Disk())
        timer.open(LogEnd(end, self.count, self._sent_ms))
        timer.save(TimerPosition(serial=self.count, log_offset=end, until_ms=self._sent_ms))
        timer.close()


def spread(now_ms: int, count: int) -> npt.NDArray[np.int64]:
    """Return due times in milliseconds since 1970, as many of each order of magnitude, unsorted.

    The shortest delay is a second, or so much that no more than 12,000 messages are due in one second.
    """
    shortest_s = max(1.0, count / (DUE_PER_S * 14))
    delays_s = shortest_s * (LONGEST_S / shortest_s) ** np.random.default_rng(count).random(count)
    return now_ms + (delays_s * 1000).astype(np.int64)


def write(root: Path, count: int) -> int:
    """Write a store with so many delayed messages; return when the first is due, soon after the store is complete."""
    store = DelayedStore(root, count)
    due_ms = spread(int(time.time() * 1000) + 1000 * count // WRITTEN_PER_S, count)
    store.add(due_ms)
    store.close()
    return int(due_ms.min())
