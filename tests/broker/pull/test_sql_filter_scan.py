"""Pulls through a backlog: what is found in whole blocks is what is found message by message, now and later."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cometmq.broker.limits import MAX_FILTER_SCAN_UNITS, MAX_FILTER_WORK
from cometmq.broker.pull import filter_scan
from cometmq.broker.pull.filter_scan import BLOCK_UNITS, FilterScan
from cometmq.filter import Selector, parse_selector
from cometmq.message.record import iter_records
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import GetMessageStatus, GetResult, MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

HOST = bytes((127, 0, 0, 1, 0, 0, 0x2A, 0x9F))
WANTED = parse_selector("n < 100 AND kind = 'x'")


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=str(tmp_path / "store"),
        mapped_file_size_commit_log=128 * 1024,
        mapped_file_size_consume_queue=20 * 700,  # files end within blocks
        max_hash_slot_num=100,
        max_index_num=400,
    )


@pytest.fixture
def store(config: StoreConfig) -> Iterator[MessageStore]:
    store = MessageStore.open(config, clock=VirtualClock())
    yield store
    store.close_now()


def fill(store: MessageStore, chance: random.Random, count: int, topic: str = "T") -> None:
    """Messages of one queue among those of another one; the numbers of most are not wanted."""
    for _ in range(count):
        properties = f"n\x01{chance.randrange(1_000)}\x02kind\x01{chance.choice('xxxy')}".encode()
        for queue_id in (0, 1):
            queue = store.queue(topic, queue_id)
            store.batch.put(queue, NewRecord(b"b" * chance.randrange(60), properties, 0, 0, 1, HOST, HOST, 0, 0, 0, ""))
    store.batch.commit()


def pulled(
    store: MessageStore, most: int, scan: FilterScan | None, *, selector: Selector = WANTED, start: int = 0
) -> list[int]:
    """Offsets of all that pulls of so many messages get, from ``start`` to the end; without a scan one by one."""
    queue = store.queue("T", 0)
    choose = None if scan is None else partial(scan.choose, selector)
    found: list[bytes] = []
    offset = start
    while offset < queue.max_offset():
        result: GetResult = store.get_message(
            queue, offset, most, predicate=selector.matches_record, choose=choose, max_bytes=100_000
        )
        assert offset < result.next_begin_offset <= queue.max_offset()
        assert result.count <= most
        if choose is not None:
            assert result.next_begin_offset - offset <= MAX_FILTER_SCAN_UNITS + 2 * BLOCK_UNITS
        offset = result.next_begin_offset
        found += [bytes(chunk) for chunk in result.chunks]
    return [record.queue_offset for chunk in found for record in iter_records(chunk)]


@pytest.mark.parametrize("most", [1, 7, 32, 1_000])
def test_a_backlog_is_pulled_whole_and_in_order(store: MessageStore, most: int) -> None:
    chance = random.Random(most)
    fill(store, chance, 5_000)
    expected = pulled(store, most, None)
    assert 200 < len(expected) < 600
    scan = FilterScan(store)
    for start in (0, 0, 1, 999, 1_024, 4_990):
        assert pulled(store, most, scan, start=start) == [at for at in expected if at >= start]


def test_what_arrives_later_is_found_in_blocks_that_were_looked_at(store: MessageStore) -> None:
    chance = random.Random(1)
    scan = FilterScan(store)
    for count in (100, 1, 70, 900, 3, 65, 2_000):
        fill(store, chance, count)
        assert pulled(store, 32, scan) == pulled(store, 32, None)


def test_another_expression_finds_its_own(store: MessageStore) -> None:
    fill(store, random.Random(2), 500)
    scan = FilterScan(store)
    everything = parse_selector("n >= 0")
    assert len(pulled(store, 32, scan)) < 100
    assert len(pulled(store, 32, scan, selector=everything)) == 500


def test_the_second_pull_of_a_block_looks_at_no_record(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, random.Random(3), 3_000)
    scan = FilterScan(store)
    expected = pulled(store, 32, scan)

    def nothing(*_: object) -> None:
        raise AssertionError("records are looked at again")

    monkeypatch.setattr(store, "unit_runs", nothing)
    assert pulled(store, 32, scan) == expected


def test_a_topic_that_is_made_again_begins_anew(store: MessageStore) -> None:
    scan = FilterScan(store)
    for seed in (4, 5):
        fill(store, random.Random(seed), 1_500)
        assert pulled(store, 32, scan) == pulled(store, 32, None)
        store.delete_topic("T")


def test_blocks_that_are_kept_are_bounded(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_scan, "CACHED_FILTER_BLOCKS", 2)
    fill(store, random.Random(6), 5_000)
    scan = FilterScan(store)
    for _ in range(2):
        assert pulled(store, 32, scan) == pulled(store, 32, None)
        assert len(scan._blocks) == 2


def test_one_pull_does_not_look_at_everything(store: MessageStore) -> None:
    fill(store, random.Random(7), 6_000)
    nothing = parse_selector("n = 5000")
    scan = FilterScan(store)
    queue = store.queue("T", 0)
    choose = partial(scan.choose, nothing)
    offset = pulls = 0
    while offset < queue.max_offset():
        result = store.get_message(queue, offset, 32, predicate=nothing.matches_record, choose=choose)
        assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
        assert offset < result.next_begin_offset <= offset + MAX_FILTER_SCAN_UNITS + BLOCK_UNITS
        offset = result.next_begin_offset
        pulls += 1
    assert pulls >= 3


def test_a_store_that_was_opened_again_gives_no_bytes_that_are_no_records(config: StoreConfig) -> None:
    store = MessageStore.open(config, clock=VirtualClock())
    fill(store, random.Random(8), 800)
    expected = pulled(store, 32, None)
    hurt = expected[5]
    place = store.queue("T", 0).unit(hurt)
    assert place is not None
    store.close_now()
    log_file = sorted(Path(config.store_path_root_dir, "commitlog").iterdir())[place[0] // (128 * 1024)]
    with log_file.open("r+b") as opened:
        opened.seek(place[0] % (128 * 1024) + 20)
        opened.write(b"\xff" * 8)  # the record says that it has another queue offset
    store = MessageStore.open(config, clock=VirtualClock())
    try:
        assert pulled(store, 32, FilterScan(store)) == [at for at in expected if at != hurt]
    finally:
        store.close_now()


def test_a_backlog_that_is_much_work_is_pulled_whole_in_parts(store: MessageStore) -> None:
    queue = store.queue("T", 0)
    much = b"\x02".join(b"p%d\x01%d" % (number, number) for number in range(2_000))
    for number in range(300):
        store.batch.put(queue, NewRecord(b"", b"%b\x02n\x01%d" % (much, number % 10), 0, 0, 1, HOST, HOST, 0, 0, 0, ""))
        store.batch.commit()
    heavy = parse_selector("n = 3 OR " + " OR ".join(f"q{number} = 'x'" for number in range(100)))
    scan = FilterScan(store)
    first = store.get_message(queue, 0, 32, predicate=heavy.matches_record, choose=partial(scan.choose, heavy))
    assert 0 < first.next_begin_offset < 10
    assert pulled(store, 32, scan, selector=heavy) == list(range(3, 300, 10))


@pytest.mark.parametrize("value_bytes", [10, 1_000, 3_500, 30_000])
def test_one_pull_looks_at_no_more_bytes_of_properties_than_promised(store: MessageStore, value_bytes: int) -> None:
    queue = store.queue("T", 0)
    text = b"pad\x01%b\x02n\x01%d"
    for number in range(2_500):
        store.batch.put(
            queue, NewRecord(b"", text % (b"p" * value_bytes, number % 10), 0, 0, 1, HOST, HOST, 0, 0, 0, "")
        )
        if number % 20 == 0:
            store.batch.commit()
    store.batch.commit()
    selector = parse_selector("n = 10")
    scan = FilterScan(store)
    looked: list[int] = []
    while (offset := sum(looked)) < 2_500:
        choose = partial(scan.choose, selector)
        result = store.get_message(queue, offset, 32, predicate=selector.matches_record, choose=choose)
        assert result.status is GetMessageStatus.NO_MATCHED_MESSAGE
        looked.append(result.next_begin_offset - offset)
    most = max(looked) * (value_bytes + 12)
    assert most <= 2 * MAX_FILTER_WORK
    assert most > MAX_FILTER_WORK // 2 or max(looked) == queue.file_units, "no more pulls than that takes"
    assert min(looked[:-1]) > 20
