"""The pieces of the snapshot are one MessagePack text, and none of them is large."""

from __future__ import annotations

import msgspec

from cometmq.broker.lite.index import LiteIndex
from cometmq.broker.lite.progress import GroupProgress
from cometmq.broker.lite.snapshot_file import CopiedGroup, CopiedIndex, Saved, SavedIndex, encode, with_crc
from cometmq.broker.pop.order import HandedOut, OrderedMessages
from cometmq.checksum import crc32

LITES = 250_000
FLIGHTS = 20_000
MOST_BYTES = 1_000_000


def test_the_pieces_are_the_encoded_snapshot_and_small() -> None:
    progress = GroupProgress(LiteIndex("P"), "readers")
    progress.set(LITES - 1, 7, None)
    for number in range(FLIGHTS):
        flight = OrderedMessages(number + 1)
        flight.messages[number] = HandedOut(1_000, 61_000, 0)
        flight.attempts[1_000] = "attempt"
        progress.set(number, number, flight)
    expected = progress.offsets.tobytes()
    group = CopiedGroup(progress)
    for _ in group.copy_offsets():
        pass
    arrays: tuple[list[bytes], ...] = ([b"na", b"mes"], [b"\3\2"], [], [b"be"], [b"lo", b"gs"], [b"owners"])
    pieces = with_crc(encode(5, 6, [CopiedIndex("P", {0: 3}, arrays, [group]), CopiedIndex("Q", {}, ([],) * 6, [])]))
    data = b"".join(pieces)
    assert max(map(len, pieces)) <= MOST_BYTES < len(data)
    assert int.from_bytes(data[:4], "big") == crc32(data[4:]) & 0xFFFFFFFF
    saved = msgspec.msgpack.decode(data[4:], type=Saved)
    assert (saved.version, saved.pop_position, saved.log_end) == (1, 5, 6)
    first, second = saved.indexes
    assert second == SavedIndex("Q", {}, b"", b"", b"", b"", b"", b"", [])
    assert (first.parent, first.ends, first.names, first.logs, first.owners) == (
        "P",
        {0: 3},
        b"names",
        b"logs",
        b"owners",
    )
    (found,) = first.groups
    assert (found.group, found.offsets, found.floor_ms, len(found.flights)) == ("readers", expected, 0, FLIGHTS)
    assert (found.flights[9].number, found.flights[9].messages) == (9, {9: HandedOut(1_000, 61_000, 0)})
