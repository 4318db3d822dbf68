"""Messages with thousands of keys go into the index over several turns of the loop; none of them is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.store.conftest import HOST, StoreBench

from cometmq.limits import INDEX_BLOCK_KEYS
from cometmq.store.index.index_file import IndexFile
from cometmq.store.message_store import MessageStore
from cometmq.testing import VirtualClock

KEYS = 3_000
MESSAGES = 20


def put_many(store: MessageStore, first: int = 0) -> None:
    queue = store.queue("T", 0)
    for number in range(first, first + MESSAGES):
        keys = tuple(f"k{number}-{key}" for key in range(KEYS))
        text = f"KEYS\x01{keys[0]} {keys[-1]}".encode()
        store.put(queue, b"", text, 0, 0, 1, HOST, HOST, 0, 0, 0, keys)


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


async def test_no_turn_writes_more_than_a_block(bench: StoreBench, blocks: list[int]) -> None:
    store = bench.open(clock=VirtualClock(), max_index_num=1_000_000)
    store.start()
    put_many(store)
    store.commit()
    assert sum(blocks) < INDEX_BLOCK_KEYS + KEYS
    assert found(store, 0) == 1
    assert found(store, MESSAGES - 1) == 0, "a query does not make everybody wait either"
    while sum(blocks) < MESSAGES * KEYS:
        before = sum(blocks)
        await asyncio.sleep(0)
        assert sum(blocks) - before < INDEX_BLOCK_KEYS + KEYS
        if len(blocks) == 3:
            put_many(store, MESSAGES)
            store.commit()  # what comes meanwhile waits in its place
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
    store.commit()
    if way == "rollback":
        put_many(store, MESSAGES)
        store.rollback()
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
    store.commit()
    assert MESSAGES * KEYS - sum(blocks) <= most
    await store.close()
    assert sum(blocks) == MESSAGES * KEYS
