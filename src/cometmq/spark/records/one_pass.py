"""Columns of many records that the compiled core decodes in one pass over their bytes.

Each record's bytes are then read from memory once, which is what decoding costs most. The core leaves records to Python
(:mod:`cometmq.spark.records.decode`) if one is damaged, has a host with IPv6, or has properties that are not UTF-8 or
very many. All columns are equal to Python's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.core import CORE
from cometmq.message import properties as props
from cometmq.spark.records.hosts import host_texts
from cometmq.spark.records.slices import Positions, constant, fixed, maps, strings

_NUMBERS: Final = (
    "queueOffset",
    "physicalOffset",
    "bornTimestamp",
    "storeTimestamp",
    "preparedTransactionOffset",
    "bornHost",
    "storeHost",
    "storeSize",
    "bodyCrc",
    "queueId",
    "flag",
    "sysFlag",
    "reconsumeTimes",
)
"""The core's numbers, in its order. A host is the number with its stored bytes."""
_HOSTS: Final = ("bornHost", "storeHost")
_ID_DIGITS: Final = 32
_OFFSET_BYTES: Final = 4
Room = npt.NDArray[np.uint8] | None
"""A buffer for bodies, if they are wanted."""
PROPERTY_COLUMNS: Final = {
    "uniqKey": props.UNIQ_KEY,
    "tags": props.TAGS,
    "keys": props.KEYS,
    "producerGroup": props.PGROUP,
}
"""Columns with the value of one property."""
_VARIABLE: Final = frozenset({"body", "properties", "propertiesText", *PROPERTY_COLUMNS})
"""Columns for which records are read beyond their heads."""


OF_RECORDS: Final = frozenset({*_NUMBERS, *_VARIABLE, "msgId", "topic"})
"""All columns that the core decodes."""


class OnePass:
    """Takes records for the columns of a schema; the bytes of a record are needed only while it is taken.

    :param only_plain: take only records that need no second look: not compressed, and with the topic of the first.
    """

    def __init__(self, schema: Any, *, only_plain: bool = False) -> None:
        self._kinds = {"sysFlag": pa.int32()} | dict(zip(schema.names, schema.types, strict=True))
        self._singles = [name for name in PROPERTY_COLUMNS if name in self._kinds]
        names = [PROPERTY_COLUMNS[name] for name in self._singles]
        wanted = "properties" in self._kinds, "propertiesText" in self._kinds, names, only_plain
        self._core = CORE.RecordColumns(wanted)
        self.has_bodies = "body" in self._kinds

    def take(self, data: Any, room: Room) -> int:
        """Take records that stand one behind the other, and return their number of bytes. Python must decode the first
        record that is not taken, unless ``room`` is too small for its body.
        """
        taken: int = self._core.take(data, room)
        return taken

    def take_at(self, data: Any, starts: Positions, room: Room) -> bool:
        """Take the records at ``starts``. Return False if Python must decode them."""
        taken: bool = self._core.take_at(data, starts, room)
        return taken

    def finish(self, room: Room) -> tuple[dict[str, Any], int]:
        """Return the columns by name and the number of the records that were taken; then begin with the next."""
        topic, (numbers, ids), body_ends, (entries, texts, values) = self._core.finish()
        count, kinds = len(body_ends) // _OFFSET_BYTES - 1, self._kinds
        found = {
            name: host_texts(np.frombuffer(data, np.uint64)) if name in _HOSTS else fixed(data, count, kinds[name])
            for name, data in zip(_NUMBERS, numbers, strict=True)
            if name in kinds
        }
        found["msgId"] = strings((np.arange(count + 1, dtype=np.int32) * _ID_DIGITS, ids), count)
        if topic is not None:
            found["topic"] = constant(topic.decode("utf-8", "replace"), count)
        if room is not None:
            found["body"] = _bodies(body_ends, room, count)
        if "properties" in kinds:
            found["properties"] = maps(entries, count, kinds["properties"])
        if "propertiesText" in kinds:
            found["propertiesText"] = strings(texts, count)
        for name, (stored, bits) in zip(self._singles, values, strict=True):
            found[name] = strings(stored, count, bits)
        return found, count


def columns_in_one_pass(
    source: bytes | memoryview, starts: Positions, schema: Any, most_body_bytes: Callable[[], int]
) -> dict[str, Any]:
    """Return columns of ``schema`` by name; all others are left to Python.

    :param most_body_bytes: returns a number that the bodies' total size does not exceed.
    """
    if CORE is None or _VARIABLE.isdisjoint(schema.names):
        return {}
    one_pass = OnePass(schema)
    room = np.empty(most_body_bytes(), np.uint8) if one_pass.has_bodies else None
    return one_pass.finish(room)[0] if one_pass.take_at(source, starts, room) else {}


def _bodies(ends: bytes, room: npt.NDArray[np.uint8], count: int) -> Any:
    used = int(np.frombuffer(ends, np.int32)[-1])
    if 2 * used < len(room):  # do not keep much more memory than the bodies need
        room = room[:used].copy()
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(room)])
