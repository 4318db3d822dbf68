"""A store of acknowledged messages to damage: written once, copied for each case, and looked at message by message."""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.store.conftest import put
from tests.store.disks import NoFlushDisk

from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.record import BLANK_MAGIC, RecordError, decode_record
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import GetMessageStatus, MessageStore

LOG_FILE_BYTES = 4096
MESSAGES = 60
QUEUES = (("A", 0), ("A", 1), ("B", 0))

Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""


@dataclasses.dataclass(frozen=True)
class Message:
    """One acknowledged message and where its record stands."""

    place: Place
    offset: int
    size: int
    record: bytes
    key: str


@dataclasses.dataclass(frozen=True)
class Written:
    """A store on disk and what is in it."""

    root: Path
    messages: list[Message]
    end: int

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.root, target)
        return target


def config_of(root: Path, **changes: object) -> StoreConfig:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=200,
        max_hash_slot_num=16,
        max_index_num=40,
    )
    return dataclasses.replace(config, **changes)  # type: ignore[arg-type]


def open_at(root: Path, *, begin_anew: bool = False, **changes: object) -> MessageStore:
    config = config_of(root, **changes)
    return MessageStore.open(config, clock=SYSTEM_CLOCK, disk=NoFlushDisk(), begin_anew=begin_anew)


def send(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        topic, queue_id = QUEUES[number % 3 if number % 7 else 0]
        body = b"%04d " % number * (5 + number * 7 % 50)
        put(store, topic, queue_id, body, key=f"key-{number}", tag="t")
        if number % 3 == 0:
            store.batch.commit()
    store.batch.commit()


def write_store(root: Path, *, killed: bool) -> Written:
    """A store stopped cleanly, or killed some time after its last checkpoint."""
    store = open_at(root)
    send(store, 0, MESSAGES * 3 // 4)
    if killed:
        store._maintenance.write_derived()
        store._maintenance.checkpoints.save_now()
    send(store, MESSAGES * 3 // 4, MESSAGES - MESSAGES * 3 // 4)
    messages = list(all_messages(store))
    end = store.max_physical_offset
    kept = root.with_name(root.name + "-written")
    if killed:
        shutil.copytree(root, kept)
        store.close_now()
    else:
        store.close_now()
        shutil.copytree(root, kept)
    return Written(kept, messages, end)


def all_messages(store: MessageStore) -> Iterator[Message]:
    for topic, queues in store.queues().items():
        for queue_id, queue in queues.items():
            for offset in range(queue.min_offset(), queue.max_offset()):
                unit = queue.unit(offset)
                record = served_at(store, (topic, queue_id, offset))
                assert unit is not None
                assert record is not None
                key = decode_record(record).properties["KEYS"]
                yield Message((topic, queue_id, offset), unit[0], unit[1], record, key)


def served_at(store: MessageStore, place: Place) -> bytes | None:
    """Return the message that a consumer gets for one offset."""
    topic, queue_id, offset = place
    queue = store.queues().get(topic, {}).get(queue_id)
    if queue is None:
        return None
    result = store.get_message(queue, offset, 1)
    if result.status is not GetMessageStatus.FOUND or result.next_begin_offset != offset + 1:
        return None
    return b"".join(result.chunks)


def missing(store: MessageStore, messages: list[Message]) -> set[Place]:
    """The messages that a consumer does not get as they were sent."""
    return {message.place for message in messages if served_at(store, message.place) != message.record}


def read_through(store: MessageStore, place: Place) -> int:
    """Count the messages of a consumer that begins at the queue's first and follows the offsets of the answers."""
    topic, queue_id, _ = place
    queue = store.queues()[topic][queue_id]
    offset, count = queue.min_offset(), 0
    while offset < queue.max_offset():
        result = store.get_message(queue, offset, 32)
        assert result.next_begin_offset > offset
        count += result.count
        offset = result.next_begin_offset
    return count


def keys_missing(store: MessageStore, messages: list[Message]) -> set[Place]:
    """The messages that a query by key does not find."""
    return {
        message.place
        for message in messages
        if message.record
        not in [bytes(view) for view in store.query(message.place[0], message.key, 32, 0, 1 << 62).records]
    }


def check(
    root: Path,
    written: Written,
    damaged: set[Place],
    spoilt: str,
    *,
    keys: bool = True,
    begin_anew: bool = False,
) -> list[str]:
    """Open the store, send to it, open it again; what is not damaged is there each time. The first findings."""
    changes = settings(spoilt)
    intact = [message for message in written.messages if message.place not in damaged]
    store = open_at(root, begin_anew=begin_anew, **changes)
    findings = store.findings
    assert_last_units_lead_into_log(store)
    assert missing(store, intact) == set()
    assert not keys or keys_missing(store, intact) == set()
    for place in QUEUES:
        assert read_through(store, (*place, 0)) >= sum(message.place[:2] == place for message in intact)
    send(store, 1000, 9)
    new = [m for m in newest(store) if m.key.startswith("key-1")]
    assert len([m for m in new if len(m.key) == 8]) == 9
    store.close_now()
    again = open_at(root, **changes)
    assert again.findings == []
    assert missing(again, intact) == set()
    assert not keys or keys_missing(again, intact) == set()
    assert [m for m in newest(again) if m.key.startswith("key-1")] == new
    again.close_now()
    return findings


def assert_last_units_lead_into_log(store: MessageStore) -> None:
    """Apache writes no units of new messages behind one that leads beyond the log, as a blank one does."""
    for queues in store.queues().values():
        for queue in queues.values():
            unit = queue.unit(queue.max_offset() - 1)
            assert queue.max_offset() == 0 or (unit is not None and 0 < sum(unit[:2]) <= store.max_physical_offset)


def newest(store: MessageStore) -> list[Message]:
    """The last twelve messages of each queue that can be read."""
    found: list[Message] = []
    for topic, queue_id in QUEUES:
        queue = store.queues()[topic][queue_id]
        for offset in range(max(0, queue.max_offset() - 12), queue.max_offset()):
            record = served_at(store, (topic, queue_id, offset))
            unit = queue.unit(offset)
            if record is not None and unit is not None:
                try:
                    key = decode_record(record).properties.get("KEYS", "")
                except RecordError:
                    continue
                found.append(Message((topic, queue_id, offset), unit[0], unit[1], record, key))
    return found


# --- damages of the log ----------------------------------------------------------------------------
def overwrite(root: Path, offset: int, data: bytes) -> None:
    """Write into the log, wherever its files are cut."""
    for path in sorted((root / "commitlog").iterdir()):
        start = int(path.name)
        with path.open("r+b") as file:
            for at, byte in enumerate(data, offset - start):
                if 0 <= at < LOG_FILE_BYTES:
                    file.seek(at)
                    file.write(bytes((byte,)))


def flip(root: Path, offset: int, bit: int = 0) -> None:
    path = root / "commitlog" / f"{offset - offset % LOG_FILE_BYTES:020d}"
    at = offset % LOG_FILE_BYTES
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


LogDamage = Callable[[Path, Message], tuple[int, int]]
"""Damages the record of a message and returns from where to where in the log."""


def field(at: int, bit: int) -> LogDamage:
    def damage(root: Path, message: Message) -> tuple[int, int]:
        where = message.offset + (at if at >= 0 else message.size + at)
        flip(root, where, bit)
        return where, where + 1

    return damage


def in_front_of_properties(message: Message) -> int:
    """Bytes of a record behind its topic's length."""
    properties = decode_record(message.record).properties_text.encode()
    return len(properties) + 2


def topic_length(root: Path, message: Message) -> tuple[int, int]:
    return field(-in_front_of_properties(message) - len(message.place[0]) - 1, 3)(root, message)


def topic_byte(root: Path, message: Message) -> tuple[int, int]:
    return field(-in_front_of_properties(message) - 1, 2)(root, message)


def properties_length(root: Path, message: Message) -> tuple[int, int]:
    return field(-in_front_of_properties(message) + 1, 1)(root, message)


def region(start: Callable[[Message], int], size: Callable[[Message], int], content: str) -> LogDamage:
    def damage(root: Path, message: Message) -> tuple[int, int]:
        first, count = start(message), size(message)
        end = min(first + count, first - first % LOG_FILE_BYTES + LOG_FILE_BYTES)
        overwrite(root, first, bytes(end - first) if content == "zeros" else random.Random(7).randbytes(end - first))
        return first, end

    return damage


def false_filler(root: Path, message: Message) -> tuple[int, int]:
    """The bytes that mark the end of a file, inside it."""
    rest = LOG_FILE_BYTES - message.offset % LOG_FILE_BYTES
    overwrite(root, message.offset, rest.to_bytes(4, "big") + BLANK_MAGIC.to_bytes(4, "big", signed=True))
    return message.offset, message.offset + 8


LOG_DAMAGES: dict[str, LogDamage] = {
    "body": field(100, 4),
    "size, higher": field(2, 1),
    "size, lower": field(3, 5),
    "size, huge": field(0, 6),
    "size, negative": field(0, 7),
    "magic": field(5, 0),
    "crc": field(9, 2),
    "queue id": field(15, 0),
    "queue id, huge": field(12, 5),
    "queue id, negative": field(12, 7),
    "queue offset, by one": field(27, 0),
    "queue offset, far": field(25, 0),
    "queue offset, huge": field(20, 5),
    "queue offset, negative": field(20, 7),
    "own place": field(34, 0),
    "sysFlag: a half message": field(39, 2),
    "sysFlag: IPv6": field(39, 4),
    "store time, far ahead": field(58, 4),
    "body length": field(87, 3),
    "body length, negative": field(84, 7),
    "topic length": topic_length,
    "topic": topic_byte,
    "properties length": properties_length,
    "properties, no UTF-8": field(-2, 7),
    "a filler": false_filler,
    "zeroed record": region(lambda m: m.offset, lambda m: m.size, "zeros"),
    "zeroed page": region(lambda m: m.offset - m.offset % 512, lambda _: 512, "zeros"),
    "garbage page": region(lambda m: m.offset - m.offset % 512, lambda _: 512, "garbage"),
    "garbage record": region(lambda m: m.offset, lambda m: m.size, "garbage"),
    "torn": region(lambda m: m.offset + m.size // 2, lambda m: m.size - m.size // 2, "zeros"),
}


def overlapping(messages: list[Message], *ranges: tuple[int, int]) -> set[Place]:
    """The messages whose bytes were damaged."""
    return {
        message.place
        for message in messages
        if any(message.offset < end and start < message.offset + message.size for start, end in ranges)
    }


def places(messages: list[Message]) -> dict[str, Message]:
    """Records at all kinds of places of the log."""
    in_order = sorted(messages, key=lambda message: message.offset)
    first_file = [message for message in in_order if message.offset < LOG_FILE_BYTES]
    return {
        "first record": in_order[0],
        "in the middle": first_file[len(first_file) // 2],
        "last of a file": first_file[-1],
        "first of a file": in_order[len(first_file)],
        "in the last file": [m for m in in_order if m.offset >= in_order[-1].offset // 4096 * 4096][1],
        "last record": in_order[-1],
    }


# --- damages of derived files ----------------------------------------------------------------------
def _queue_tail(root: Path) -> None:
    path = max((root / "consumequeue" / "A" / "0").iterdir())
    path.write_bytes(b"\xff" * path.stat().st_size)


def _every_queue_zeroed(root: Path) -> None:
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))


def _all_derived(root: Path) -> None:
    for name in ("consumequeue", "index", "comet"):
        shutil.rmtree(root / name)
    (root / "checkpoint").unlink()


def _index_and_position(root: Path) -> None:
    shutil.rmtree(root / "index")
    shutil.rmtree(root / "comet")


def _spoilt_position(root: Path) -> None:
    (root / "comet" / "position.json").write_bytes(b"{")


def _index_of_unknown_sizes(root: Path) -> None:
    """Nothing tells the slots and entries of the files any more, and the configuration has others."""
    (root / "comet" / "store.json").unlink()
    for path in (root / "index").iterdir():
        with path.open("r+b") as file:
            file.seek(24)
            file.write(bytes(8))


SPOILT: dict[str, Callable[[Path], None]] = {
    "nothing": lambda root: None,
    "index gone": lambda root: shutil.rmtree(root / "index"),
    "index settings changed": _index_of_unknown_sizes,
    "position gone": lambda root: (root / "comet" / "position.json").unlink(),
    "position spoilt": _spoilt_position,
    "queues gone": lambda root: shutil.rmtree(root / "consumequeue"),
    "queues zeroed": _every_queue_zeroed,
    "a queue's tail garbage": _queue_tail,
    "index and position gone": _index_and_position,
    "all gone": _all_derived,
    "checkpoint gone": lambda root: (root / "checkpoint").unlink(),
}


def settings(spoilt: str) -> dict[str, Any]:
    return {"max_hash_slot_num": 20, "max_index_num": 60} if spoilt == "index settings changed" else {}


def scrub(root: Path) -> None:
    """Give the space of one case back."""
    shutil.rmtree(root)
    assert not os.path.exists(root)
