"""A slave asks its master for what changed in the tables, and has it within a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from tests.broker.replication.following import connect, copied, replicated
from tests.broker.wire import Wire
from tests.helpers.calls import calls_of_longest
from tests.helpers.request_hooks import add_hooks

import cometmq.broker.replication.table_changes
from cometmq.broker.limits import OFFSET_PARTS, TABLE_ROWS_PER_SLICE
from cometmq.broker.replication.table_changes import MasterTables, TableChanges, TableChangesProcessor
from cometmq.broker.tables.offset_table import WHOLE, OffsetTable
from cometmq.remoting.bodies import BodyError, SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.processors import Request, Response, RpcHook
from cometmq.testing import Cluster, VirtualClock

TOPICS = 3_000
PAIRS = 2_000
QUEUES = 8


@pytest.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A master and its slave."""
    keys = {"mappedFileSizeCommitLog": str(64 * 1024), "mappedFileSizeConsumeQueue": "2000"}
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as cluster:
        yield cluster


@pytest.fixture
async def large(pair: Cluster) -> Cluster:
    """The slave has a copy of large tables."""
    master = pair.broker(0)
    for number in range(TOPICS):
        master.topics.put(TopicConfig(topic_name=f"topic-{number}"))
    for number in range(PAIRS):
        for queue_id in range(QUEUES):
            assert master.offsets.commit("g", f"topic-{number}", queue_id, 0)
    await copied(pair)
    await cast(VirtualClock, pair.clock).run_for(4)  # it asks every second from then on
    assert_same(pair)
    return pair


def assert_same(pair: Cluster) -> None:
    master, slave = pair.broker(0), pair.slave()
    assert slave.slave.tables.trouble == ""
    assert (slave.topics.version, slave.topics.table) == (master.topics.version, master.topics.table)
    assert (slave.groups.version, slave.groups.table) == (master.groups.version, master.groups.table)
    assert slave.offsets.table == master.offsets.table


def answers_of(pair: Cluster) -> list[tuple[int, int]]:
    """The code and the bytes of each table that the master gives from now on."""
    given: list[tuple[int, int]] = []
    tables = (RequestCode.GET_TABLE_CHANGES, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_CONSUMER_OFFSET)

    def note(_address: str, request: Request[Any], response: Response) -> None:
        if request.code in tables:
            given.append((request.code, len(response.body)))

    add_hooks(pair.broker(0).server, RpcHook(after=note))
    return given


async def test_what_did_not_change_is_not_sent_again_and_a_change_is_there_within_a_second(large: Cluster) -> None:
    clock, master = cast(VirtualClock, large.clock), large.broker(0)
    given = answers_of(large)
    await clock.run_for(3)
    assert len(given) >= 6, "three tables every second"
    assert all(code == RequestCode.GET_TABLE_CHANGES and size < 100 for code, size in given)
    given.clear()
    master.topics.put(TopicConfig(topic_name="one-more"))
    master.topics.delete("topic-5")
    master.groups.put(SubscriptionGroupConfig(group_name="new"))
    assert master.offsets.commit("g", "topic-7", 1, 0)
    master.offsets.forget(group="g", topic="topic-8")
    await clock.run_for(1.1)
    assert_same(large)
    assert max(size for _, size in given) < 500, given


def test_many_removed_rows_are_looked_up_in_short_steps() -> None:
    names = {f"T{number}@g" for number in range(20_000)}
    steps = TableChangesProcessor(cast(Any, None))._rows("mark", names, OffsetTable(), None)
    assert calls_of_longest(steps) < 10_000


async def test_a_topic_that_the_slave_noted_by_itself_is_the_masters_again(large: Cluster) -> None:
    clock, slave = cast(VirtualClock, large.clock), large.slave()
    given = answers_of(large)
    assert slave.topics.note_queue("only-here", 0)
    assert slave.topics.delete("topic-1")
    await clock.run_for(1.1)
    assert_same(large)
    assert max(size for _, size in given) < 500, given


async def with_an_offset_beyond_the_log(pair: Cluster) -> Wire:
    """Copy one message of ``T`` and the offset 3 of ``readers``; return a connection to the master."""
    await copied(pair)
    wire = await connect(pair.broker(0))
    await wire.send("T")
    await copied(pair)
    await cast(VirtualClock, pair.clock).run_for(4)
    pair.broker(0).offsets.set_offset("readers", "T", 0, 3)
    await cast(VirtualClock, pair.clock).run_for(1.1)
    return wire


async def test_an_offset_beyond_the_slaves_log_is_taken_when_the_log_is_there(pair: Cluster) -> None:
    clock, slave = cast(VirtualClock, pair.clock), pair.slave()
    wire = await with_an_offset_beyond_the_log(pair)
    assert slave.offsets.query("readers", "T", 0) == 1
    await wire.send("T")
    await clock.run_for(1.1)
    assert slave.offsets.query("readers", "T", 0) == 2
    await wire.send("T")
    await clock.run_for(1.1)
    assert slave.offsets.query("readers", "T", 0) == 3
    await wire.close()


async def test_an_offset_that_the_log_has_reached_since_the_last_copy_is_there_at_the_end(pair: Cluster) -> None:
    """The next life may be a master's: a member that has just copied everything to a new disk is elected."""
    slave = pair.slave()
    wire = await with_an_offset_beyond_the_log(pair)
    slave.slave.tables._next.close()  # the next copy comes too late
    await wire.send("T")
    await replicated(pair)
    assert slave.offsets.query("readers", "T", 0) == 1
    await slave.slave.tables.stop()
    assert slave.offsets.query("readers", "T", 0) == 2
    await wire.close()


async def test_an_offset_beyond_the_slaves_log_goes_with_the_masters(pair: Cluster) -> None:
    clock, master, slave = cast(VirtualClock, pair.clock), pair.broker(0), pair.slave()
    await copied(pair)
    wire = await connect(master)
    for topic in ("T", "U"):
        await wire.send(topic)
    await copied(pair)
    await clock.run_for(4)
    for topic in ("T", "U"):
        master.offsets.set_offset("readers", topic, 0, 3)
    await clock.run_for(1.1)
    assert slave.offsets.query("readers", "T", 0) == 1
    master.offsets.forget(group="readers", topic="T")
    for _ in range(2):
        await clock.run_for(1.1)
        assert {key: dict(queues) for key, queues in slave.offsets.table.items()} == {"U@readers": {0: 1}}
    await wire.close()


async def test_a_master_that_began_anew_gives_its_tables_as_a_whole(large: Cluster) -> None:
    await large.stop_broker(0)
    master = await large.start_broker(0)
    master.topics.put(TopicConfig(topic_name="one-more"))
    await cast(VirtualClock, large.clock).run_for(25)
    assert_same(large)


async def test_a_table_that_failed_is_copied_whole_the_next_time(
    large: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = large.broker(0), large.slave()
    master.offsets.set_offset("g", "another", 0, 0)

    def failing(*_: object) -> None:
        raise BodyError("it cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(slave.offsets, "take_over", failing)
        await slave.slave.tables.copy()
    await slave.slave.tables.copy()
    assert_same(large)


async def test_a_master_that_does_not_know_the_question_gives_whole_tables(
    large: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(*_: object) -> None:
        return None

    monkeypatch.setattr(MasterTables, "changes", unknown)
    master = large.broker(0)
    master.topics.put(TopicConfig(topic_name="one-more"))
    master.offsets.set_offset("g", "another", 0, 0)
    master.groups.put(SubscriptionGroupConfig(group_name="new"))
    await large.slave().slave.tables.copy()
    assert_same(large)


async def test_no_turn_of_the_master_has_more_than_a_slice(large: Cluster) -> None:
    master = large.broker(0)
    steps = TableChangesProcessor(cast(Any, master))._offsets("", WHOLE)
    turns = sum(1 for _ in steps) + 1
    assert turns >= PAIRS * (QUEUES + 1) // TABLE_ROWS_PER_SLICE
    sizes = [sum(1 + len(row) for row in some.values()) for some in _slices(master.offsets.table)]
    assert max(sizes) <= TABLE_ROWS_PER_SLICE + QUEUES


def _slices(table: Any) -> list[dict[str, Any]]:
    return list(cometmq.broker.replication.table_changes._slices(list(table), table, []))


async def test_all_offsets_come_in_parts_and_what_the_master_has_no_more_goes(pair: Cluster) -> None:
    clock, master, slave = cast(VirtualClock, pair.clock), pair.broker(0), pair.slave()
    for number in range(200):
        assert master.offsets.commit(f"group-{number}", "T", number % QUEUES, 0)
    await copied(pair)
    await clock.run_for(4)
    assert_same(pair)
    for number in range(200):
        slave.offsets.set_offset(f"only-here-{number}", "T", 0, 0)
    master.offsets.changes.forget()
    given = answers_of(pair)
    await clock.run_for(1.1)
    assert_same(pair)
    large_ones = [size for _, size in given if size > 100]
    assert len(large_ones) >= OFFSET_PARTS - 1
    assert max(large_ones) < 1_500, "a sixteenth of 200 groups, more or less"


async def test_a_slave_that_asks_for_no_parts_is_given_all_offsets_at_once(pair: Cluster) -> None:
    for number in range(20):
        assert pair.broker(0).offsets.commit(f"group-{number}", "T", 0, 0)
    wire = await connect(pair.broker(0))
    answer = await wire.call(RequestCode.GET_TABLE_CHANGES, ext={"table": "offsets"})
    assert answer.body.count(b"T@group-") == 20
    await wire.close()


@pytest.mark.parametrize(
    "wrong", [{"part": "16", "parts": "16"}, {"part": "-1"}, {"parts": "17"}, {"table": "topics", "part": "1"}]
)
async def test_a_part_that_does_not_exist_is_refused(pair: Cluster, wrong: dict[str, str]) -> None:
    wire = await connect(pair.broker(0))
    answer = await wire.call(RequestCode.GET_TABLE_CHANGES, ext={"table": "offsets", "parts": "16", **wrong})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    await wire.close()


async def test_an_unknown_table_is_refused(pair: Cluster) -> None:
    wire = await connect(pair.broker(0))
    answer = await wire.call(RequestCode.GET_TABLE_CHANGES, ext={"table": "secrets"})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    await wire.close()


@pytest.mark.parametrize("body", [b"{}\n{", b"{}\n[]", b'{}\n{"a":1}', b'{}\n{"a":{"0":"x"}}', b"{}\n\xff"])
def test_a_line_that_cannot_be_read_is_an_error(body: bytes) -> None:
    found = TableChanges("m", True, cometmq.broker.replication.table_changes.Head(), body, 3)
    with pytest.raises(BodyError, match="malformed table changes at byte 3"):
        list(found.rows(dict[int, int]))
