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
PROPERTY_COLUMNS: Final = {
    "uniqKey": props.UNIQ_KEY,
    "tags": props.TAGS,
    "keys": props.KEYS,
    "producerGroup": props.PGROUP,
}
"""Columns with the value of one property."""
_VARIABLE: Final = frozenset({"body", "properties", "propertiesText", *PROPERTY_COLUMNS})
"""Columns for which records are read beyond their heads."""


def columns_in_one_pass(
    source: bytes | memoryview, starts: Positions, schema: Any, most_body_bytes: Callable[[], int]
) -> dict[str, Any]:
    """Return columns of ``schema`` by name; all others are left to Python.

    :param most_body_bytes: returns a number that the bodies' total size does not exceed.
    """
    kinds = {"sysFlag": pa.int32()} | dict(zip(schema.names, schema.types, strict=True))
    if CORE is None or _VARIABLE.isdisjoint(kinds):
        return {}
    room = np.empty(most_body_bytes(), np.uint8) if "body" in kinds else None
    singles = [name for name in PROPERTY_COLUMNS if name in kinds]
    wanted = "properties" in kinds, "propertiesText" in kinds, [PROPERTY_COLUMNS[name] for name in singles]
    columns = CORE.record_columns(source, starts, room, wanted)
    if columns is None:
        return {}
    topic, (numbers, ids), body_ends, (entries, texts, values) = columns
    count = len(starts)
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
    if wanted[0]:
        found["properties"] = maps(entries, count, kinds["properties"])
    if wanted[1]:
        found["propertiesText"] = strings(texts, count)
    for name, (stored, bits) in zip(singles, values, strict=True):
        found[name] = strings(stored, count, bits)
    return found


def _bodies(ends: bytes, room: npt.NDArray[np.uint8], count: int) -> Any:
    used = int(np.frombuffer(ends, np.int32)[-1])
    if 2 * used < len(room):  # do not keep much more memory than the bodies need
        room = room[:used].copy()
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(room)])
