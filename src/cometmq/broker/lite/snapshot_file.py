"""The file of the snapshot of lite topics: what it contains, and how it is encoded in pieces.

The file is a CRC32 (big-endian) and MessagePack, with arrays of little-endian numbers. Encoding a million lite topics
in one call would hold Python's lock for longer than requests may wait. Therefore arrays are copied, encoded and written
in pieces of about a megabyte.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from cometmq.broker.lite.progress import GroupProgress
from cometmq.broker.pop.order import HandedOut, OrderedMessages
from cometmq.broker.slices import batches
from cometmq.checksum import crc32

VERSION: Final = 1
_NUMBERS: Final = 100_000
"""Number of offsets that are copied in one step."""
_FLIGHTS: Final = 1_000
"""Number of flights in one piece."""


class SavedFlight(msgspec.Struct, array_like=True):
    """The messages of a lite topic that are handed out to a group."""

    number: int
    next_offset: int
    messages: dict[int, HandedOut]
    attempts: dict[int, str]


class SavedGroup(msgspec.Struct, array_like=True):
    """A group's progress in the lite topics of a parent topic."""

    group: str
    offsets: bytes
    flights: list[SavedFlight]
    floor_ms: int


class SavedIndex(msgspec.Struct, array_like=True):
    """The lite topics of a parent topic."""

    parent: str
    ends: dict[int, int]
    """The end of each queue up to which messages are included."""
    names: bytes
    lengths: bytes
    starts: bytes
    begins: bytes
    logs: bytes
    owners: bytes
    groups: list[SavedGroup]


class Saved(msgspec.Struct, array_like=True):
    """The contents of the file."""

    version: int
    pop_position: int
    """Offset in the POP log at which the broker continues reading."""
    log_end: int
    """The end of the log, beyond which no included message is."""
    indexes: list[SavedIndex]
    unsure_until: int = 0
    """Position in the log before which groups may have read lite topics of which no entry is left."""


class CopiedGroup:
    """A copy of a group's progress.

    The flights are those of this moment. The offsets are copied piece by piece: one that is newer than the POP log
    position becomes right when the later entries are applied again.
    """

    def __init__(self, progress: GroupProgress) -> None:
        self.group = progress.group
        self.floor_ms = progress.floor_ms
        self.flights: list[tuple[int, OrderedMessages]] = list(progress.flights.items())
        self.offsets: list[bytes] = []
        self._source = progress.offsets
        self._size = len(progress.offsets)

    def copy_offsets(self) -> Iterator[None]:
        """Copy the offsets in slices."""
        for at in range(0, self._size, _NUMBERS):
            self.offsets.append(self._source[at : min(at + _NUMBERS, self._size)].tobytes())
            yield
        self._source = array("q")


@dataclass
class CopiedIndex:
    """A copy of the lite topics of a parent topic, in the order of :class:`SavedIndex`."""

    parent: str
    ends: dict[int, int]
    arrays: tuple[list[bytes], ...]
    """The pieces of names, lengths, starts, begins, log offsets and owners."""
    groups: list[CopiedGroup]


_encode: Final = msgspec.msgpack.Encoder().encode


def array_header(count: int) -> bytes:
    """Return what precedes the elements of an array."""
    return b"\xdd" + count.to_bytes(4, "big")


def _binary(pieces: list[bytes]) -> Iterator[bytes]:
    yield b"\xc6" + sum(map(len, pieces)).to_bytes(4, "big")
    yield from pieces


def encode(pop_position: int, log_end: int, indexes: list[CopiedIndex], unsure_until: int = 0) -> Iterator[bytes]:
    """Yield the pieces of an encoded :class:`Saved`."""
    yield array_header(5) + _encode(VERSION) + _encode(pop_position) + _encode(log_end) + array_header(len(indexes))
    for index in indexes:
        yield array_header(9) + _encode(index.parent) + _encode(index.ends)
        for pieces in index.arrays:
            yield from _binary(pieces)
        yield array_header(len(index.groups))
        for group in index.groups:
            yield array_header(4) + _encode(group.group)
            yield from _binary(group.offsets)
            yield array_header(len(group.flights))
            for some in batches(group.flights, _FLIGHTS):
                yield b"".join(
                    _encode(SavedFlight(number, flight.next_offset, flight.messages, flight.attempts))
                    for number, flight in some
                )
            yield _encode(group.floor_ms)
    yield _encode(unsure_until)


def with_crc(pieces: Iterable[bytes]) -> list[bytes]:
    """Return the pieces of the file."""
    found, crc = [b""], 0
    for piece in pieces:
        crc = crc32(piece, crc)
        found.append(piece)
    found[0] = (crc & 0xFFFFFFFF).to_bytes(4, "big")
    return found
