"""A store of Apache's with ``enableConsumeQueueExt``: no address of the extension is taken for a tag or a due time."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.unpack import unpack
from tests.store.conftest import StoreBench, fill

from cometmq.message.ids import tags_code
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.record import decode_record, iter_records
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.extended_units import MAX_EXTENSION_ADDRESS
from cometmq.testing import VirtualClock

BenchAt = Callable[[Path], StoreBench]


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Path:
    unpack(golden / "stores" / "ext" / "store.tar.gz", tmp_path)
    return tmp_path / "store"


def opened(root: Path) -> MessageStore:
    config = StoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=131072,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=100,
        max_index_num=300,
    )
    return MessageStore.open(config, clock=VirtualClock())


def addresses(root: Path) -> int:
    """Count the units in the files that are addresses."""
    count = 0
    for path in (root / "consumequeue").rglob("0*0"):
        if path.is_file():
            raw = path.read_bytes()
            codes = [int.from_bytes(raw[at + 12 : at + 20], "big", signed=True) for at in range(0, len(raw), 20)]
            count += sum(code <= MAX_EXTENSION_ADDRESS for code in codes)
    return count


def check(store: MessageStore) -> None:
    count = 0
    for topic, queues in store.queues().items():
        for queue_id, queue in queues.items():
            for offset in range(queue.min_offset(), queue.max_offset()):
                unit = queue.unit(offset)
                assert unit is not None
                data = store.record_at(unit[0], unit[1])
                assert data is not None
                record = decode_record(data)
                if topic == SCHEDULE_TOPIC:
                    assert unit[2] - record.store_timestamp == {0: 1_000, 1: 5_000, 2: 10_000, 17: 7_200_000}[queue_id]
                else:
                    tag = record.properties.get("TAGS", "")
                    assert unit[2] == (tags_code(tag) if tag else 0)
                count += 1
    assert count == 66
    for tag in "abc":
        found = store.get_message(store.queue("Ext", 1), 0, 100, tag_codes=frozenset({tags_code(tag)}))
        bodies = [record.body for chunk in found.chunks for record in iter_records(chunk)]
        assert bodies == [b"m%d" % number for number in range(1, 60, 2) if "abc"[number % 3] == tag]


@pytest.mark.parametrize("without", [(), ("abort",), ("abort", "consumequeue_ext"), ("abort", "checkpoint")], ids=str)
def test_tags_codes_and_due_times_take_the_place_of_addresses(root: Path, without: tuple[str, ...]) -> None:
    assert addresses(root) == 66
    for name in without:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        store = opened(root)
        check(store)
        store.close_now()
        assert addresses(root) == 0
    assert not any("addresses" in line for line in store.findings)


def test_addresses_that_apache_adds_later_are_replaced_as_well(root: Path, tmp_path: Path) -> None:
    """Apache's broker ran again on a store that we had opened: our position is there, and is true."""
    queue = root / "consumequeue" / "Ext" / "1" / f"{0:020}"
    extended = queue.read_bytes()
    opened(root).close_now()
    assert queue.read_bytes() != extended
    queue.write_bytes(extended)
    store = opened(root)
    check(store)
    assert (
        "consumequeue: 30 units that contained addresses in consumequeue_ext were rewritten with tags codes"
        in store.findings
    )
    store.close_now()


def test_what_is_damaged_keeps_its_address(root: Path) -> None:
    """Nothing follows from a record that is not there; all others are mended, and the store opens."""
    log = root / "commitlog" / f"{0:020}"
    unit = (root / "consumequeue" / "Ext" / "0" / f"{0:020}").read_bytes()[40:60]
    at = int.from_bytes(unit[:8], "big")
    with log.open("r+b") as file:
        file.seek(at + 4)
        file.write(bytes(4))
    (root / "abort").unlink()
    store = opened(root)
    assert addresses(root) <= 1
    found = store.get_message(store.queue("Ext", 1), 0, 100, tag_codes=frozenset({tags_code("a")}))
    assert found.chunks
    store.close_now()


def test_a_start_without_a_position_reads_only_the_used_part_of_queue_files(bench_at: BenchAt, tmp_path: Path) -> None:
    """A hundred thousand queue files of 6 MB are 600 GB, nearly all of which is a hole."""
    bench = bench_at(tmp_path / "large")
    bench.config = dataclasses.replace(bench.config, mapped_file_size_consume_queue=6_000_000)
    store = bench.open()
    fill(store, 100, queues=100)
    store.close_now()
    (bench.root / "comet" / "position.json").unlink()
    before = bytes_read()
    store = bench.open()
    assert bytes_read() - before < 6_000_000
    assert len(store.queues()["TopicTest"]) == 100


def bytes_read() -> int:
    """Count the bytes that this process has read from files."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])
