"""SIGKILL under load: a real process dies, and nothing that it acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.conftest import SEGMENT_BYTES, StoreBench, served

WRITER = """
import asyncio, sys
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))

async def main():
    store = MessageStore.open(StoreConfig(
        store_path_root_dir=sys.argv[1], mapped_file_size_commit_log=int(sys.argv[2]),
        mapped_file_size_consume_queue=2000, max_hash_slot_num=100, max_index_num=400,
        flush_disk_type=sys.argv[3], flush_interval_consume_queue=20, flush_interval_commit_log=10,
    ))
    store.start()
    start = sum(queue.max_offset() for queues in store.queues().values() for queue in queues.values())
    number = start
    while True:
        for _ in range(7):
            body = b"%d " % number * (5 + number % 31)
            key = f"key-{number}"
            store.batch.put(store.queue("TopicTest", number % 3), NewRecord(
                body, f"KEYS\\x01{key}".encode(), 0, 0, 0, HOST, HOST, keys=[key]))
            number += 1
        position = store.batch.commit()
        if store.sync_flush:
            done = asyncio.get_running_loop().create_future()
            store.when_flushed(position, done.set_result)
            assert await done is None
        else:
            await asyncio.sleep(0)
        print(number, flush=True)

asyncio.run(main())
"""


@pytest.mark.crash
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_killed_under_load_loses_nothing_acknowledged(tmp_path: Path, flush: str) -> None:
    root = tmp_path / "store"
    kept: list[bytes] = []
    for life in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root), str(SEGMENT_BYTES), flush], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        acknowledged = 0
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged > len(kept) + 300 + 170 * life:
                break
        writer.kill()
        rest = writer.stdout.read().split()
        writer.stdout.close()
        writer.wait()
        # A line may be cut short by the kill; all but the last are whole.
        acknowledged = max([acknowledged, *map(int, rest[:-1])])
        bench = StoreBench(root)
        store = bench.open()
        try:
            assert any(line.startswith("abort: ") for line in store.findings)
            queues = served(store)
            records = sorted((raw for each in queues.values() for raw in each), key=lambda raw: raw[28:36])
            assert len(records) >= acknowledged
            assert records[: len(kept)] == kept
            for number, raw in enumerate(records):
                assert b"\x01key-%d" % number in raw, "each message once, in the order it was put"
            found = [
                len(store.query("TopicTest", f"key-{number}", 32, 0, 1 << 62).records) for number in range(len(records))
            ]
            assert min(found) >= 1
            kept = records
        finally:
            bench.close_all()
        (root / "abort").touch()  # the next life begins as after a kill again
