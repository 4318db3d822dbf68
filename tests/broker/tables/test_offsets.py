"""Consumer offsets: asked for, noted, kept over restarts."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.disks import FailingDisk
from tests.broker.wire import Wire
from tests.helpers.calls import calls_of_longest
from tests.helpers.waiting import until

import cometmq.broker.tables.offset_table
from cometmq import fastjson
from cometmq.broker.controller import Broker
from cometmq.broker.tables.consumer_offsets import ConsumerOffsetManager, _pieces
from cometmq.broker.tables.offset_expiry import OffsetExpiry
from cometmq.broker.tables.queue_offsets import NO_OFFSET
from cometmq.clock import SYSTEM_CLOCK
from cometmq.loop import finish
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import QueryConsumerOffsetRequestHeader, UpdateConsumerOffsetRequestHeader
from cometmq.testing import VirtualClock


def opened(path: Path) -> ConsumerOffsetManager:
    return ConsumerOffsetManager(path, clock=VirtualClock())


async def query(wire: Wire, group: str = "g", topic: str = "T", queue_id: int = 0, **more: bool) -> RemotingCommand:
    header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=topic, queue_id=queue_id, **more)
    return await wire.call(RequestCode.QUERY_CONSUMER_OFFSET, header)


async def commit(wire: Wire, offset: int, group: str = "g", topic: str = "T", queue_id: int = 0) -> RemotingCommand:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )
    return await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)


async def test_committed_offset_is_answered(wire: Wire) -> None:
    await wire.send("T")
    assert (await commit(wire, 5)).code == ResponseCode.SUCCESS
    assert (await query(wire)).ext_fields == {"offset": "5"}
    await commit(wire, 2)
    assert (await query(wire)).ext_fields == {"offset": "2"}, "going back is allowed"


async def test_minus_one_is_ignored(wire: Wire) -> None:
    await wire.send("T")
    await commit(wire, 5)
    assert (await commit(wire, -1)).code == ResponseCode.SUCCESS
    assert (await query(wire)).ext_fields == {"offset": "5"}


async def test_new_group_starts_at_zero_on_a_young_topic(wire: Wire) -> None:
    await wire.send("T")
    assert (await query(wire)).ext_fields == {"offset": "0"}
    assert (await query(wire, topic="nosuch")).ext_fields == {"offset": "0"}


async def test_new_group_is_told_there_is_none_when_it_asks_so(wire: Wire) -> None:
    await wire.send("T")
    answer = await query(wire, set_zero_if_not_found=False)
    assert (answer.code, answer.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )


async def test_new_group_on_an_old_topic_is_told_there_is_none(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    wire = await connect_to(await start_broker(access_message_in_memory_max_ratio=0))
    await wire.send("T")
    await wire.send("T", b"x")
    assert (await query(wire)).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(("group", "topic"), [("../g", "T"), ("", "T"), ("g", "../T"), ("g", ""), ("a@b", "T")])
async def test_names_are_checked(broker: Broker, wire: Wire, group: str, topic: str) -> None:
    answer = await commit(wire, 5, group, topic)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert not broker.offsets.table


async def test_offsets_survive_a_restart(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    first = await start_broker()
    wire = await connect_to(first)
    await commit(wire, 7)
    await commit(wire, 9, queue_id=3)
    await first.stop()
    second = await start_broker()
    assert second.offsets.of_queues("g", "T") == {0: 7, 3: 9}


async def test_offsets_are_written_while_running(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    await commit(wire, 7)
    file = Path(broker.config.store_path_root_dir) / "config" / "consumerOffset.json"
    clock.advance(5)
    await until(file.exists)
    assert fastjson.loads(file.read_bytes()) == {"logOffset": 0, "offsetTable": {"T@g": {"0": 7}}}


def test_file_is_apaches(tmp_path: Path) -> None:
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    offsets.commit("g", "T", 0, 5)
    offsets.save()
    text = (tmp_path / "config" / "consumerOffset.json").read_text()
    assert text == '{\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:5\n\t\t}\n\t}\n}'


def test_entries_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir()
    path.write_text('{"offsetTable":{"T@g":{0:5,"1":6},"../x@g":{0:1},"T@h":{0:"x"},"T@i":3}}')
    offsets = opened(path)
    findings = offsets.load()
    assert [finding.split("'")[1] for finding in findings] == ["../x@g", "T@h", "T@i"]
    assert offsets.of_queues("g", "T") == {0: 5, 1: 6}


def test_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.offset_table, "MAX_CONSUMER_OFFSET_TABLES", 2)
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    assert [offsets.commit("g", topic, 0, 1) for topic in "abc"] == [True, True, False]
    assert offsets.commit("g", "a", 1, 1)


def test_names_of_topics_and_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.offset_table, "MAX_CONSUMER_OFFSET_NAMES", 2)
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    pairs = [("a", "g"), ("b", "g"), ("c", "g"), ("a", "h"), ("b", "h"), ("a", "i")]
    assert [offsets.commit(group, topic, 0, 1) for topic, group in pairs] == [True, True, False, True, True, False]
    offsets.forget(topic="b")
    assert not offsets.commit("i", "a", 0, 1)
    offsets.forget(group="h")
    assert offsets.commit("i", "c", 0, 1)
    assert offsets.table == {"a@g": {0: 1}, "c@i": {0: 1}}


def test_offsets_of_all_queues_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.offset_table, "MAX_CONSUMER_OFFSETS", 3)
    path = tmp_path / "config" / "consumerOffset.json"
    first = opened(path)
    assert [first.commit("g", "T", queue_id, 5) for queue_id in (0, 2**31 - 1, 7, 8)] == [True, True, True, False]
    assert first.commit("g", "T", 7, 6), "known ones go on"
    assert not first.commit("other", "T", 0, 1)
    assert first.query("g", "T", 8) == NO_OFFSET
    first.save()
    offsets = opened(path)
    offsets.load()
    assert not offsets.commit("other", "T", 0, 1)
    assert set(offsets.table) == {"T@g"}
    offsets.forget(group="g")
    assert [offsets.commit("other", "T", queue_id, 1) for queue_id in range(4)] == [True, True, True, False]


def test_full_disk_is_tried_again(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    directory.write_text("a file where a directory should be")
    offsets = opened(directory / "consumerOffset.json")
    offsets.commit("g", "T", 0, 5)
    offsets.save()
    directory.unlink()
    offsets.save()
    assert (directory / "consumerOffset.json").exists()


async def test_full_disk_is_tried_again_in_the_background(tmp_path: Path) -> None:
    directory = tmp_path / "config"
    offsets = opened(directory / "consumerOffset.json")
    directory.write_text("a file where a directory should be")
    for offset in (5, 6):
        offsets.commit("g", "T", 0, offset)
        await offsets.save_in_background()
    directory.unlink()
    await offsets.save_in_background()
    again = opened(directory / "consumerOffset.json")
    assert again.load() == []
    assert again.table == {"T@g": {0: 6}}


@pytest.mark.parametrize("kind", ["write", "flush"])
async def test_a_journal_that_cannot_be_written_is_followed_by_a_whole_file(tmp_path: Path, kind: str) -> None:
    disk = FailingDisk()
    path = tmp_path / "config" / "consumerOffset.json"
    offsets = ConsumerOffsetManager(path, clock=VirtualClock(), disk=disk)
    offsets.commit("g", "T", 0, 5)
    await offsets.save_in_background()
    setattr(disk, f"{kind}_error", errno.EIO)
    for offset in (6, 7):
        offsets.commit("g", "T", 0, offset)
        offsets.forget(group="g", topic="U")
        await offsets.save_in_background()
    setattr(disk, f"{kind}_error", None)
    offsets.commit("g", "U", 0, 1)
    for offset in (8, 9):
        await offsets.save_in_background()
        offsets.commit("g", "T", 0, offset)
    again = opened(path)
    assert again.load() == []
    assert again.table == {"T@g": {0: 8}, "U@g": {0: 1}}


NAMES = st.sampled_from(["T", "U", "%RETRY%g", "a|b"])
COMMITS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3), st.integers(-1, 100)), max_size=40)


@given(COMMITS)
def test_agrees_with_a_plain_map(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("offsets") / "config" / "consumerOffset.json"
    offsets = opened(path)
    expected: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        offsets.commit(group, topic, queue_id, offset)
        if offset >= 0:
            expected[group, topic, queue_id] = offset
    offsets.save()
    again = opened(path)
    assert again.load() == []
    for table in (offsets, again):
        for group in ("T", "U", "%RETRY%g", "a|b"):
            for topic in ("T", "U", "%RETRY%g", "a|b"):
                for queue_id in range(4):
                    wanted = expected.get((group, topic, queue_id), NO_OFFSET)
                    assert table.query(group, topic, queue_id) == wanted
                assert {q for t, qs in table.of_group(group) if t == topic for q in qs} == {
                    q for g, t, q in expected if (g, t) == (group, topic)
                }
            assert table.groups_of(group) == {g for g, t, _ in expected if t == group}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), NAMES, NAMES),
        st.tuples(st.sampled_from(["group", "topic"]), NAMES, st.just("")),
        st.sampled_from([("save", "", ""), ("tidy", "", "")]),
    ),
    max_size=40,
)


@given(STEPS)
def test_groups_and_topics_are_removed_with_all_their_pairs(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    path = tmp_path_factory.mktemp("offsets") / "config" / "consumerOffset.json"
    offsets = opened(path)
    offsets.commit("T", "T", 0, 1)
    offsets.save()  # the complete file, so that what follows is in the journal
    expected = {("T", "T"): 1}
    for number, (step, name, topic) in enumerate(steps, start=2):
        if step == "commit":
            offsets.commit(name, topic, 0, number)
            expected[name, topic] = number
        elif step == "group":
            offsets.forget(group=name)
            expected = {pair: offset for pair, offset in expected.items() if pair[0] != name}
        elif step == "topic":
            offsets.forget(topic=name)
            expected = {pair: offset for pair, offset in expected.items() if pair[1] != name}
        elif step == "save":
            offsets.save()
        else:
            finish(offsets.table.tidy())
    offsets.save()
    again = opened(path)
    assert again.load() == []
    for table in (offsets, again):
        assert table.table == {f"{topic}@{group}": {0: offset} for (group, topic), offset in expected.items()}
        assert len(table.table) == len(expected)
        for name in ("T", "U", "%RETRY%g", "a|b"):
            assert table.groups_of(name) == {group for group, topic in expected if topic == name}
            assert table.has_group(name) == any(group == name for group, _ in expected)
        finish(table.table.tidy())
        assert table.table.offsets == len(expected)
        assert len(table.table._groups_of) == len({topic for _, topic in expected})


@pytest.mark.parametrize("kind", ["group", "topic"])
async def test_a_group_or_topic_with_many_offsets_is_removed_in_short_steps(tmp_path: Path, kind: str) -> None:
    def pair(number: int) -> tuple[str, str]:
        return ("g", f"T{number}") if kind == "group" else (f"g{number}", "T")

    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    kept = ("other", "T0") if kind == "group" else ("g0", "other")
    offsets.commit(*kept, 0, 1)
    for number in range(20_000):
        offsets.commit(*pair(number), 0, 1)
    await offsets.save_in_background()
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    try:
        if kind == "group":
            offsets.forget(group="g")
        else:
            offsets.forget(topic="T")
    finally:
        sys.setprofile(None)
    assert calls < 100, "not a call for each pair"
    assert offsets.groups_of(pair(0)[1]) == ({"other"} if kind == "group" else set())
    assert offsets.query(*pair(0), 0) == NO_OFFSET
    assert [topic for topic, _ in offsets.of_group("g0")] == ([] if kind == "group" else ["other"])
    rounds = 0
    writing = asyncio.create_task(offsets.save_in_background())
    while not writing.done():
        rounds += 1
        await asyncio.sleep(0)
    assert rounds >= 20, "a slice of the pairs in each round"
    again = opened(tmp_path / "config" / "consumerOffset.json")
    assert again.load() == []
    assert again.table == offsets.table == {f"{kept[1]}@{kept[0]}": {0: 1}}
    assert offsets.table.offsets == 1


def test_pairs_of_a_removed_topic_are_passed_over_in_short_steps(tmp_path: Path) -> None:
    """Until the table is tidied, its groups still have them: no step looks at all groups."""
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    for number in range(20_000):
        offsets.commit(f"g{number}", "T", 0, 1)
    offsets.commit("last", "U", 0, 1)
    offsets.forget(topic="T")
    copied: dict[str, dict[int, int]] = {}
    written: list[bytes] = []
    expiry = OffsetExpiry(offsets, lambda _topic: True, lambda _group: True, clock=SYSTEM_CLOCK)

    def looks() -> Iterator[None]:
        for _ in range(25):
            expiry.expire_next()
            yield

    assert calls_of_longest(copied.update(some) for some in offsets.copy_in_slices()) < 10_000
    assert calls_of_longest(map(written.append, _pieces(offsets.table, None))) < 10_000
    assert calls_of_longest(looks()) < 10_000
    assert copied == {"U@last": {0: 1}}
    assert fastjson.loads(b"".join(written))["offsetTable"] == {"U@last": {"0": 1}}


async def test_a_slave_learns_of_a_removed_group(tmp_path: Path) -> None:
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    for topic in "abc":
        offsets.commit("g", topic, 0, 5)
    mark, _ = offsets.changes.since("")
    offsets.forget(group="g")
    assert offsets.changes.since(mark)[1] == {"a@g", "b@g", "c@g"}


async def test_a_write_that_is_called_off_is_still_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cometmq.broker.tables.consumer_offsets, "TABLE_ROWS_PER_SLICE", 1)
    offsets = opened(tmp_path / "config" / "consumerOffset.json")
    for topic in "abc":
        offsets.commit("g", topic, 0, 5)
    writing = asyncio.create_task(offsets.save_in_background())
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    offsets.save()
    again = opened(tmp_path / "config" / "consumerOffset.json")
    assert again.load() == []
    assert again.table == offsets.table


@pytest.mark.parametrize("table", [{}, {"T@g": {0: 5}}, {"T@g": {0: 5, 7: 6}, "%RETRY%g@g": {}}])
def test_the_file_is_as_in_one_piece(tmp_path: Path, table: dict[str, dict[int, int]]) -> None:
    path = tmp_path / "config" / "consumerOffset.json"
    path.parent.mkdir()
    path.write_bytes(fastjson.dumps({"offsetTable": table}))
    offsets = opened(path)
    assert offsets.load() == []
    offsets.set_offset("g", "U", 0, 1)
    offsets.forget(group="g", topic="U")
    offsets.save_last()
    assert path.read_bytes() == fastjson.dumps_pretty({"offsetTable": table})
