"""SIGKILL of a store with 2,000 topics while their files are written: nothing that it acknowledged is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers import forks
from tests.store.conftest import SEGMENT_BYTES, StoreBench, served

from cometmq.message.record import decode_record

TOPICS = 2_000

WRITER = """
import asyncio, os, signal, sys
from cometmq.store.config import StoreConfig
from cometmq.store.disk import Disk
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.known_files import KnownFiles
from cometmq.store.write_batch import NewRecord

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
root, segment_bytes, topics, life, step, count, ending = sys.argv[1:]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class DyingDisk(Disk):
    "Kills its process before it writes, or flushes, a queue's file for the time after ``count``."
    left = int(count)

    def write(self, fd, data, at):
        self.come_to("write", fd)
        super().write(fd, data, at)

    def flush(self, fd):
        self.come_to("flush", fd)
        super().flush(fd)

    def come_to(self, here, fd):
        if here == step and "/consumequeue/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.left -= 1
            if self.left < 0:
                die()

if step == "known files":
    KnownFiles._write_file = die
elif step == "end":
    KnownFiles.save = die

async def main():
    store = MessageStore.open(StoreConfig(
        store_path_root_dir=root, mapped_file_size_commit_log=int(segment_bytes), mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100, max_index_num=400, flush_interval_consume_queue=20, flush_interval_commit_log=10,
    ), disk=DyingDisk())
    store.start()
    for number in range(int(topics)):
        queue = store.queue(f"T{number}", number % 3)
        store.batch.put(queue, NewRecord(f"{life} {number}".encode(), b"", 0, 0, 0, HOST, HOST, 0, 0, 0, []))
        if number % 100 == 99:
            store.batch.commit()
            print(number + 1, flush=True)
            if ending == "none":
                await asyncio.sleep(0.005)
    if ending == "none":
        await asyncio.Event().wait()
    store.close_now()

asyncio.run(main())
"""


def live_and_die(root: Path, life: int, step: str, count: int, ending: str) -> int:
    """Let a process put a message into each topic, and die at a step; return how many it has acknowledged."""
    words = (str(root), SEGMENT_BYTES, TOPICS, life, step, count, ending)
    writer = forks.start([sys.executable, "-c", WRITER, *map(str, words)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        lines = writer.stdout.read().split()
    assert writer.wait(60) == -signal.SIGKILL
    return int(lines[-1])


@pytest.mark.crash
def test_killed_while_files_of_thousands_of_queues_are_written_loses_nothing_acknowledged(tmp_path: Path) -> None:
    lives = (
        ("write", 0, "none"),  # before the first file of a queue
        ("write", 1_100, "none"),  # while the thread makes new files
        ("flush", 900, "none"),  # while the queues are flushed, before the position file
        ("known files", 0, "none"),  # between the position file and that of known files
        ("write", 1_100, "stop"),  # while a stop writes the queues
        ("end", 0, "stop"),  # when it is clean, before it writes the file of known files
    )
    bodies: dict[str, list[bytes]] = {f"T{number}": [] for number in range(TOPICS)}
    bench = StoreBench(tmp_path / "store")
    for life, (step, count, ending) in enumerate(lives):
        acknowledged = live_and_die(bench.root, life, step, count, ending)
        assert acknowledged > 0
        for number in range(acknowledged):
            bodies[f"T{number}"].append(b"%d %d" % (life, number))
        store = bench.open()
        assert any(line.startswith("abort: ") for line in store.findings) is (step != "end")
        found = {topic: [decode_record(raw).body for raw in records] for (topic, _), records in served(store).items()}
        for topic, expected in bodies.items():
            assert found.get(topic, [])[: len(expected)] == expected
            assert len(found.get(topic, [])) - len(expected) in (0, 1), "one that was not acknowledged may be there"
            bodies[topic] = found.get(topic, [])
        bench.close_all()
    store = bench.open()
    assert store.findings == []
    bench.close_all()
