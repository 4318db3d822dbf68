"""The layouts of records, queue units, index entries and batches: their fields, types and offsets.

All readers and writers take their formats and offsets from this module. :mod:`cometmq.message.record_arrays` derives
NumPy's types from a layout, and ``scripts/core_constants`` writes the constants of the compiled core.

A record is one message. It has the same bytes on disk, in answers to pulls and in replication
(``CommitLog.MessageExtEncoder``, ``MessageDecoder``)::

    the fields of RECORDS; the two hosts have 8 or 20 bytes, as sysFlag says
    body
    int8 length of the topic (int16 with the magic of V2), topic
    int16 length of the properties, properties
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6


class Layout:
    """A layout of consecutive big-endian fields.

    :param formats: the :mod:`struct` format of each field, by name.
    """

    def __init__(self, formats: Mapping[str, str]) -> None:
        self.formats: Final = formats
        self.offsets: Final[dict[str, int]] = {}
        """The position of each field's first byte."""
        at = 0
        for name, kind in formats.items():
            self.offsets[name] = at
            at += struct.calcsize(f">{kind}")
        self.size: Final = at
        """The total length of all fields, in bytes."""

    def struct(self, *names: str) -> struct.Struct:
        """Return a struct for the given fields (by default all) that skips the bytes before and between them.

        :raises ValueError: the fields are not in the order of the layout.
        """
        code, at = ">", 0
        for name in names or self.formats:
            passed = self.offsets[name] - at
            if passed < 0:
                raise ValueError(f"{name} precedes the previous field in the layout")
            code += f"{passed}x{self.formats[name]}" if passed else self.formats[name]
            at = self.offsets[name] + struct.calcsize(f">{self.formats[name]}")
        return struct.Struct(code)


HOSTS_V6: Final = BORNHOST_V6 | STOREHOST_V6
"""The sysFlag bits that determine the size of a record's hosts."""


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the sysFlag bits for hosts of these sizes (8 or 20 bytes)."""
    flags = BORNHOST_V6 if len(born_host) == IPV6_HOST_BYTES else 0
    return flags | STOREHOST_V6 if len(store_host) == IPV6_HOST_BYTES else flags


def _record(bits: int) -> Layout:
    return Layout(
        {
            "size": "i",
            "magic": "i",
            "body_crc": "i",  # CRC32 of the body, 31 bits
            "queue_id": "i",
            "flag": "i",
            "queue_offset": "q",
            "physical_offset": "q",
            "sys_flag": "i",
            "born_timestamp": "q",
            "born_host": f"{IPV6_HOST_BYTES if bits & BORNHOST_V6 else IPV4_HOST_BYTES}s",
            "store_timestamp": "q",
            "store_host": f"{IPV6_HOST_BYTES if bits & STOREHOST_V6 else IPV4_HOST_BYTES}s",
            "reconsume_times": "i",
            "prepared_transaction_offset": "q",
            "body_length": "i",
        }
    )


RECORDS: Final = {bits: _record(bits) for bits in (0, BORNHOST_V6, STOREHOST_V6, HOSTS_V6)}
"""The layout of the fields before a record's body, indexed by the sysFlag's :data:`HOSTS_V6` bits."""
RECORD: Final = RECORDS[0]
"""The field offsets of a record with two IPv4 hosts; the fields before the hosts have the same offsets in all records.
"""


def record_offsets(name: str) -> dict[int, int]:
    """Return a field's offsets in records, indexed by the sysFlag's :data:`HOSTS_V6` bits."""
    return {bits: layout.offsets[name] for bits, layout in RECORDS.items()}


BODY_AT: Final = {bits: layout.size for bits, layout in RECORDS.items()}
"""The offset of a record's body, indexed by the sysFlag's :data:`HOSTS_V6` bits."""
BODY_LENGTH_BYTES: Final = struct.calcsize(">i")
TOPIC_LENGTH_BYTES: Final = 1
TOPIC_LENGTH_V2_BYTES: Final = 2
PROPERTIES_LENGTH_BYTES: Final = 2

QUEUE_UNIT: Final = Layout({"offset": "q", "size": "i", "tags": "q"})
"""The fields of a ConsumeQueue unit: a record's log offset, size and tags code."""

INDEX_HEADER: Final = Layout(
    {"begin_time": "q", "end_time": "q", "begin_offset": "q", "end_offset": "q", "slots": "i", "next": "i"}
)
"""The header of an index file: first and last store timestamp, first and last log offset, used slots, and next entry.
"""
INDEX_ENTRY: Final = Layout({"hash": "i", "offset": "q", "seconds": "i", "previous": "i"})
"""An index entry: key hash, log offset, seconds since the first timestamp, and previous entry in the chain."""

BATCH_HEAD: Final = Layout({"size": "i", "magic": "i", "body_crc": "i", "flag": "i", "body_length": "i"})
"""The fields before a message's body in a batch. The body is followed by an int16 properties length and the properties.
"""
