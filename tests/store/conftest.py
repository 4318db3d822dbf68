"""A small store to write into, read whole, damage and open again."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.ids import tags_code
from cometmq.message.record import decode_record
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.message_store import GetMessageStatus, MessageStore
from cometmq.store.write_batch import NewRecord

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
SEGMENT_BYTES = 65_536

Served = dict[tuple[str, int], list[bytes]]


class StoreBench:
    """Opens stores under one directory and closes or abandons them at the end."""

    def __init__(self, root: Path) -> None:
        self.config = StoreConfig(
            store_path_root_dir=str(root),
            mapped_file_size_commit_log=SEGMENT_BYTES,
            mapped_file_size_consume_queue=2_000,
            max_hash_slot_num=100,
            max_index_num=400,
        )
        self.root = root
        self._open: list[MessageStore] = []

    def open(self, *, clock: Clock = SYSTEM_CLOCK, disk: Disk | None = None, **changes: object) -> MessageStore:
        config = dataclasses.replace(self.config, **changes)  # type: ignore[arg-type]
        store = MessageStore.open(config, clock=clock, disk=disk)
        self._open.append(store)
        return store

    def crashed_copy(self, target: Path) -> StoreBench:
        """The store as a process killed now would leave it."""
        shutil.copytree(self.root, target)
        return StoreBench(target)

    def close_all(self) -> None:
        for store in self._open:
            store.close_now()

    @property
    def log_files(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[StoreBench]:
    bench = StoreBench(tmp_path / "store")
    yield bench
    bench.close_all()


@pytest.fixture
def bench_at() -> Iterator[Callable[[Path], StoreBench]]:
    made: list[StoreBench] = []

    def make(root: Path) -> StoreBench:
        made.append(StoreBench(root))
        return made[-1]

    yield make
    for bench in made:
        bench.close_all()


def put(
    store: MessageStore, topic: str, queue_id: int, body: bytes, *, key: str = "", tag: str = "", flag: int = 0
) -> int:
    """One message into the running turn."""
    properties = []
    if key:
        properties.append(f"KEYS\x01{key}")
    if tag:
        properties.append(f"TAGS\x01{tag}")
    return store.batch.put(
        store.queue(topic, queue_id),
        NewRecord(
            body,
            "\x02".join(properties).encode(),
            0,
            flag,
            1_700_000_000_000,
            HOST,
            HOST,
            0,
            0,
            tags_code(tag or None),
            [key] if key else [],
        ),
    )


def fill(
    store: MessageStore, messages: int, *, queues: int = 3, topic: str = "TopicTest", turn: int = 5, start: int = 0
) -> None:
    """Commit many messages of some hundred bytes, round robin over the queues."""
    for number in range(start, start + messages):
        body = (b"%d " % number) * (10 + number % 37)
        put(store, topic, number % queues, body, key=f"key-{number}", tag=f"tag-{number % 3}")
        if number % turn == turn - 1:
            store.batch.commit()
    store.batch.commit()


def served(store: MessageStore) -> Served:
    """Every record that the store serves, by queue; each is checked to be whole and in its place."""
    everything: Served = {}
    for topic, queues in store.queues().items():
        for queue_id, queue in queues.items():
            records: list[bytes] = []
            offset = queue.min_offset()
            while offset < queue.max_offset():
                result = store.get_message(queue, offset, 32)
                assert result.status is GetMessageStatus.FOUND, (topic, queue_id, offset, result.status)
                body = memoryview(b"".join(result.chunks))
                at = 0
                for _ in range(result.count):
                    record = decode_record(body, at)
                    assert (record.topic, record.queue_id, record.queue_offset) == (topic, queue_id, offset)
                    records.append(bytes(body[at : at + record.size]))
                    at += record.size
                    offset += 1
                assert at == len(body) == result.size
                assert result.next_begin_offset == offset
            if records:
                everything[topic, queue_id] = records
    return everything


def keys_found(store: MessageStore, topic: str, numbers: range) -> list[int]:
    """The keys written by ``fill`` that the index finds, each exactly once."""
    found = []
    for number in numbers:
        key = f"key-{number}"
        hits = [
            record
            for view in store.query(topic, key, 32, 0, 1 << 62).records
            if (record := decode_record(view)).properties.get("KEYS") == key and record.topic == topic
        ]
        assert len(hits) <= 1
        if hits:
            found.append(number)
    return found
