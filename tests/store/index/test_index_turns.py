"""Messages with thousands of keys go into the index over several rounds of the loop; none of them is lost."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path

import pytest
from tests.store.conftest import HOST, StoreBench

from cometmq.limits import INDEX_BLOCK_KEYS
from cometmq.message.record import encode_record
from cometmq.store.index.index_file import IndexFile
from cometmq.store.index.index_service import INDEX_BLOCK_MESSAGES
from cometmq.store.message_store import MessageStore
from cometmq.store.queue.consume_queue import UNIT
from cometmq.store.write_batch import EncodedRecords, NewRecord
from cometmq.testing import VirtualClock

KEYS = 3_000
MESSAGES = 20


def put_many(store: MessageStore, first: int = 0) -> None:
    queue = store.queue("T", 0)
    for number in range(first, first + MESSAGES):
        keys = tuple(f"k{number}-{key}" for key in range(KEYS))
        text = f"KEYS\x01{keys[0]} {keys[-1]}".encode()
        store.batch.put(queue, NewRecord(b"", text, 0, 0, 1, HOST, HOST, 0, 0, 0, keys))


def found(store: MessageStore, number: int) -> int:
    return len(store.query("T", f"k{number}-{KEYS - 1}", 10, 0, 1 << 62).records)


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of keys that each call wrote, in order."""
    written: list[int] = []
    append = IndexFile.append

    def noted(file: IndexFile, hashes: object, *more: object) -> int:
        count = append(file, hashes, *more)  # type: ignore[arg-type]
        written.append(count)
        return count

    monkeypatch.setattr(IndexFile, "append", noted)
    return written


def put_hashed(store: MessageStore, messages: int) -> None:
    """Store a turn of messages with one key each, as the compiled core puts them."""
    queue = store.queue("T", 0)
    place = store.batch.next_place()
    assert place is not None
    at, _, timestamp = place
    records, units, offsets = b"", b"", []
    for number in range(messages):
        offsets.append(at)
        record = encode_record(
            topic="T",
            queue_id=0,
            queue_offset=queue.next_offset + number,
            physical_offset=at,
            body=b"",
            properties_text="",
            flag=0,
            sys_flag=0,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=timestamp,
            store_host=HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
        )
        records += record
        units += UNIT.pack(at, len(record), 0)
        at += len(record)
    hashes = struct.pack(f"={messages}i", *range(messages))
    queues = [(queue, messages, units)]
    hashed_at = struct.pack(f"={messages}q", *offsets)
    store.batch.put_encoded(EncodedRecords(records, at, len(record), messages, queues, hashes, hashed_at))
    store.batch.commit()


@pytest.mark.parametrize("each", [1, 4])
async def test_a_block_is_written_once_its_messages_are_there(bench: StoreBench, blocks: list[int], each: int) -> None:
    store = bench.open(clock=VirtualClock(), max_index_num=10_000)
    store.start()
    store.batch.put(store.queue("T", 0), NewRecord(b"", b"", 0, 0, 1, HOST, HOST))  # the log has a file from now on
    store.batch.commit()
    for _ in range(INDEX_BLOCK_MESSAGES // each - 1):
        put_hashed(store, each)
    assert blocks == []
    put_hashed(store, each)
    assert blocks == [INDEX_BLOCK_MESSAGES]


async def test_no_turn_writes_more_than_a_block(bench: StoreBench, blocks: list[int]) -> None:
    store = bench.open(clock=VirtualClock(), max_index_num=1_000_000)
    store.start()
    put_many(store)
    store.batch.commit()
    assert sum(blocks) < INDEX_BLOCK_KEYS + KEYS
    assert found(store, 0) == 1
    assert found(store, MESSAGES - 1) == 0, "a query does not make everybody wait either"
    while sum(blocks) < MESSAGES * KEYS:
        before = sum(blocks)
        await asyncio.sleep(0)
        assert sum(blocks) - before < INDEX_BLOCK_KEYS + KEYS
        if len(blocks) == 3:
            put_many(store, MESSAGES)
            store.batch.commit()  # what comes meanwhile waits in its place
    assert found(store, MESSAGES - 1) == 1
    while not found(store, 2 * MESSAGES - 1):
        await asyncio.sleep(0)
    assert sum(blocks) == 2 * MESSAGES * KEYS
    await store.close()


@pytest.mark.parametrize("way", ["stop", "crash", "rollback"])
async def test_what_waits_for_the_index_is_there_after_a_restart(bench: StoreBench, tmp_path: Path, way: str) -> None:
    store = bench.open(clock=VirtualClock(), max_index_num=1_000_000)
    store.start()
    put_many(store)
    store.batch.commit()
    if way == "rollback":
        put_many(store, MESSAGES)
        store.batch.rollback()
    left = bench.crashed_copy(tmp_path / "left") if way == "crash" else bench
    await store.close()
    again = left.open(max_index_num=1_000_000)
    assert [found(again, number) for number in range(2 * MESSAGES)] == [1] * MESSAGES + [0] * MESSAGES
    left.close_all()


async def test_so_many_keys_that_memory_would_fill_are_written_at_once(
    bench: StoreBench, blocks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 4 * INDEX_BLOCK_KEYS
    monkeypatch.setattr("cometmq.store.maintenance.MAX_INDEX_WAITING_KEYS", most)
    store = bench.open(clock=VirtualClock(), max_index_num=1_000_000)
    store.start()
    put_many(store)
    store.batch.commit()
    assert MESSAGES * KEYS - sum(blocks) <= most
    await store.close()
    assert sum(blocks) == MESSAGES * KEYS
