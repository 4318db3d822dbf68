"""A slave of a CometMQ master: it has the log and the tables, serves pulls, refuses writes, outlives anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from tests.broker.replication.following import PATIENCE_S, bodies, connect, copied, log_of, replicated
from tests.broker.transacting import COMMIT, Half, end
from tests.broker.wire import Wire, records

from cometmq.broker.config import load_broker_config
from cometmq.limits import MAX_FRAME_BYTES
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.record import iter_records
from cometmq.message.sysflag import PULL_COMMIT, PULL_SUBSCRIPTION
from cometmq.options import ConfigError
from cometmq.remoting.admin_bodies import HARuntimeInfo
from cometmq.remoting.bodies import BodyError, SubscriptionGroupConfig, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    ConsumerSendMsgBackRequestHeader,
    OpenProducerRequestHeader,
    QueryMessageRequestHeader,
    RecallMessageRequestHeader,
    UpdateConsumerOffsetRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.testing import Cluster, VirtualClock, settle, wait_until

FILE_BYTES = 64 * 1024


@pytest.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A master and its slave, with small log files."""
    keys = {"mappedFileSizeCommitLog": str(FILE_BYTES), "mappedFileSizeConsumeQueue": "2000"}
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as cluster:
        yield cluster


async def send(cluster: Cluster, count: int, topic: str = "T", size: int = 10, start: int = 0) -> list[bytes]:
    wire = await connect(cluster.broker(0))
    sent = [b"%d:" % number + b"x" * size for number in range(start, start + count)]
    for body in sent:
        assert (await wire.send(topic, body)).code == ResponseCode.SUCCESS
    await wire.close()
    return sent


# --- the log --------------------------------------------------------------------------------------
async def test_what_is_stored_at_the_master_can_be_pulled_at_the_slave(pair: Cluster) -> None:
    sent = await send(pair, 150, size=1000)
    await copied(pair)
    assert await bodies(pair.slave(), "T") == sent
    assert pair.slave().store.max_physical_offset > 2 * FILE_BYTES
    await pair.stop_slave()
    await pair.stop_broker(0)
    assert log_of(pair.data / "broker-0-slave-1") == log_of(pair.store_root(0))


async def test_a_pull_that_waits_at_the_slave_is_woken_by_a_message_of_the_master(pair: Cluster) -> None:
    await send(pair, 1)
    await copied(pair)
    slave = await connect(pair.slave())
    waiting = asyncio.create_task(slave.pull("T", queue_offset=1, wait_ms=15_000))
    await settle()
    assert len(pair.slave().hold) == 1
    (second,) = await send(pair, 1, start=1)
    assert [record.body for record in records(await waiting)] == [second]
    await slave.close()


async def test_queries_are_answered_as_by_the_master(pair: Cluster) -> None:
    """By key, by the client's id and by the broker's, also after a start anew."""
    wire = await connect(pair.broker(0))
    offsets = []
    for number in range(40):
        properties = f"KEYS\x01all k{number}\x02UNIQ_KEY\x01U{number}\x02"
        sent = await wire.send("T", b"%d" % number + bytes(4000), properties=properties)
        offsets.append(decode_offset_msg_id(sent.ext_fields["msgId"])[2])
    await copied(pair)

    def asked(key: str, **fields: object) -> QueryMessageRequestHeader:
        values = {"max_num": 64, "begin_timestamp": 0, "end_timestamp": 2**62} | fields
        return QueryMessageRequestHeader(topic="T", key=key, **values)  # type: ignore[arg-type]

    async def answers(wire: Wire) -> list[tuple[int, bytes]]:
        queries = [asked("all"), asked("all", max_num=3), asked("U7", unique_key_query=True), asked("none")]
        views = [ViewMessageRequestHeader(offset=offset) for offset in (*offsets, 1, offsets[-1] * 2)]
        found = [await wire.call(RequestCode.QUERY_MESSAGE, query) for query in queries]
        found += [await wire.call(RequestCode.VIEW_MESSAGE_BY_ID, view) for view in views]
        await wire.close()
        return [(answer.code, bytes(answer.body)) for answer in found]

    expected = await answers(wire)
    assert [sum(1 for _ in iter_records(body)) for _, body in expected] == [40, 3, 1, 0, *[1] * 40, 0, 0]
    assert await answers(await connect(pair.slave())) == expected
    await pair.stop_slave()
    await pair.start_slave()
    assert await answers(await connect(pair.slave())) == expected


async def test_a_new_slave_gets_all_that_the_master_keeps(pair: Cluster) -> None:
    """Not only the last log file, which is what Apache's slave gets; also when the first files are deleted."""
    await pair.stop_slave()
    sent = await send(pair, 200, size=1000)
    await pair.start_slave()
    await replicated(pair)
    assert pair.slave().store.min_physical_offset == 0
    master = pair.broker(0)
    for path in sorted(Path(master.config.commit_log).iterdir())[:2]:
        os.utime(path, (0, 0))
    await cast(VirtualClock, pair.clock).run_for(2)
    assert master.store.delete_expired_files() == 2
    await pair.stop_slave()
    pair.empty_slave()
    await pair.start_slave()
    await copied(pair)
    assert pair.slave().store.min_physical_offset == 2 * FILE_BYTES
    first = pair.slave().store.queue("T", 0).min_offset()
    assert 0 < first == master.store.queue("T", 0).min_offset()
    wire = await connect(pair.slave())
    assert records(await wire.pull("T", queue_offset=first))[0].body == sent[first]
    await wire.close()


def _empty(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


async def test_kills_of_either_leave_no_gap(pair: Cluster) -> None:
    sent: list[bytes] = []
    for killed in ("slave", "master", "slave", "master"):
        sent += await send(pair, 40, size=700, start=len(sent))
        if killed == "slave":
            await pair.kill_slave()
            sent += await send(pair, 10, size=700, start=len(sent))
            await pair.start_slave()
        else:
            await replicated(pair)
            await pair.kill_broker(0)
            await pair.start_broker(0)
        await copied(pair)
        assert await bodies(pair.slave(), "T") == sent
    await pair.stop_slave()
    await pair.stop_broker(0)
    assert log_of(pair.data / "broker-0-slave-1") == log_of(pair.store_root(0))


async def test_a_slave_whose_log_has_lost_its_end_gets_it_from_its_master(pair: Cluster) -> None:
    """Meanwhile it serves what is left, and keeps consumer offsets of what comes again."""
    sent = await send(pair, 150, size=1000)
    wire = await connect(pair.broker(0))
    committed = UpdateConsumerOffsetRequestHeader(consumer_group="g", topic="T", queue_id=0, commit_offset=150)
    assert (await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, committed)).code == ResponseCode.SUCCESS
    await wire.close()
    await copied(pair)
    await pair.stop_slave()
    root = pair.data / "broker-0-slave-1"
    files = sorted((root / "commitlog").iterdir())
    cut = int(files[1].name) + 30_000
    os.truncate(files[1], 30_000)
    for path in files[2:]:
        path.unlink()
    await pair.kill_broker(0)
    slave = await pair.start_slave()
    assert cut - 2000 < slave.store.max_physical_offset <= cut
    left = await bodies(slave, "T")
    assert left == sent[: len(left)]
    assert 60 < len(left) < 150
    assert slave.offsets.query("g", "T", 0) == 150
    await pair.start_broker(0)
    sent += await send(pair, 10, start=150)
    await copied(pair)
    assert await bodies(slave, "T") == sent
    await pair.stop_slave()
    await pair.stop_broker(0)
    assert log_of(root) == log_of(pair.store_root(0))


async def test_a_slave_whose_log_has_parted_stops_and_says_so(pair: Cluster) -> None:
    """The master lost its store; the slave keeps what it has, and serves it."""
    sent = await send(pair, 5)
    await copied(pair)
    await pair.kill_broker(0)
    _empty(pair.store_root(0))
    await pair.start_broker(0)
    follower = pair.slave().slave.follower
    assert await wait_until(pair.clock, lambda: "ends earlier" in (follower.trouble or ""), PATIENCE_S)
    await send(pair, 20, "Other")
    assert await wait_until(pair.clock, lambda: follower.trouble and "have diverged" in follower.trouble, PATIENCE_S)
    assert await bodies(pair.slave(), "T") == sent
    wire = await connect(pair.slave())
    answer = await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert b"have diverged" in answer.body
    await wire.close()


async def test_a_log_that_has_parted_is_seen_although_the_nameserver_had_lost_the_master(pair: Cluster) -> None:
    """Not even messages of the same sizes, which would go on exactly where the log here ends, are taken."""
    clock = cast(VirtualClock, pair.clock)
    await send(pair, 5)
    await copied(pair)
    await pair.kill_broker(0)
    await clock.run_for(60)  # the slave registers, and no nameserver knows a master
    _empty(pair.store_root(0))
    await pair.start_broker(0)
    await send(pair, 9, start=1)
    end = pair.slave().store.max_physical_offset
    follower = pair.slave().slave.follower
    assert await wait_until(clock, lambda: follower.trouble and "have diverged" in follower.trouble, PATIENCE_S)
    assert pair.slave().store.max_physical_offset == end


async def test_a_slave_that_was_away_for_longer_than_the_log_is_kept_says_so(pair: Cluster) -> None:
    sent = await send(pair, 5)
    await copied(pair)
    await pair.stop_slave()
    await send(pair, 150, "Fill", size=1000)
    master = pair.broker(0)
    for path in sorted(Path(master.config.commit_log).iterdir())[:2]:
        os.utime(path, (0, 0))
    await cast(VirtualClock, pair.clock).run_for(2)
    assert master.store.delete_expired_files() == 2
    await pair.start_slave()
    follower = pair.slave().slave.follower
    reason = f"begins at {2 * FILE_BYTES}"
    assert await wait_until(pair.clock, lambda: follower.trouble and reason in follower.trouble, PATIENCE_S)
    assert await bodies(pair.slave(), "T") == sent, "what it has is served"


async def test_a_slave_without_a_master_waits_for_one(clock: VirtualClock) -> None:
    async with Cluster(slaves=1, clock=clock) as pair:
        await pair.stop_broker(0)
        await pair.stop_slave()
        await pair.start_slave()
        await clock.run_for(60)
        assert pair.slave().slave.follower.trouble == "no nameserver knows a master for this broker name"
        await pair.start_broker(0)
        await send(pair, 3)
        await replicated(pair)


# --- what only a master does ------------------------------------------------------------------------
async def test_a_slave_refuses_what_only_a_master_does(pair: Cluster) -> None:
    await send(pair, 1)
    await copied(pair)
    end_of_log = pair.slave().store.max_physical_offset
    wire = await connect(pair.slave())
    refused = await wire.send("T", b"no")
    assert (refused.code, refused.remark) == (
        ResponseCode.SERVICE_NOT_AVAILABLE,
        "service not available now: this broker is a slave, send to its master",
    )
    back = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=1, origin_msg_id="", origin_topic="T")
    assert (await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (await end(wire, Half("k", 0, 0), COMMIT)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    recall = RecallMessageRequestHeader(topic="T", recall_handle="x")
    assert (await wire.call(RequestCode.RECALL_MESSAGE, recall)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    run = OpenProducerRequestHeader(producer="q", batch=0)
    assert (await wire.call(RequestCode.OPEN_PRODUCER, run)).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert pair.slave().store.max_physical_offset == end_of_log
    for code in (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    ):
        answer = await wire.call(code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("Can't modify topic or subscription group from slave broker")
    await wire.close()


async def test_it_tells_what_it_follows(pair: Cluster) -> None:
    """HA_STATUS (907) of a slave; the master's lists it."""
    await send(pair, 3)
    await replicated(pair)
    wire = await connect(pair.slave())
    info = decode_body(HARuntimeInfo, (await wire.call(RequestCode.GET_BROKER_HA_STATUS)).body)
    await wire.close()
    followed = info.ha_client_runtime_info
    assert not info.master
    assert followed is not None
    assert followed.master_addr == f"127.0.0.1:{pair.broker(0).ha.port}"
    assert (followed.is_activated, followed.max_offset) == (True, pair.broker(0).store.max_physical_offset)


async def test_a_slave_delivers_nothing_by_itself(pair: Cluster) -> None:
    clock = cast(VirtualClock, pair.clock)
    wire = await connect(pair.broker(0))
    await wire.send("Later", b"1", properties="DELAY\x011\x02")
    await wire.send("Later", b"2", properties=f"UNIQ_KEY\x01u\x02TIMER_DELIVER_MS\x01{clock.now_ms() + 2000}")
    await wire.close()
    await replicated(pair)
    await pair.kill_broker(0)
    end_of_log = pair.slave().store.max_physical_offset
    await clock.run_for(30)
    assert pair.slave().store.max_physical_offset == end_of_log


# --- pulls ------------------------------------------------------------------------------------------
async def test_a_pull_at_a_slave_commits_nothing(pair: Cluster) -> None:
    await send(pair, 3)
    await copied(pair)
    wire = await connect(pair.slave())
    await wire.pull("T", sys_flag=PULL_SUBSCRIPTION | PULL_COMMIT, commit_offset=2)
    assert pair.slave().offsets.query("consumers", "T", 0) == -1
    await wire.close()


@pytest.mark.parametrize("check", ["false", "true"])
async def test_beyond_its_ends_a_slave_sends_to_the_master_and_to_no_other_offset(
    clock: VirtualClock, check: str
) -> None:
    keys = {"offsetCheckInSlave": check}
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as pair:
        await send(pair, 3)
        await copied(pair)
        wire = await connect(pair.slave())
        answer = await wire.pull("T", queue_offset=50)
        found = (answer.code, answer.ext_fields["nextBeginOffset"], answer.ext_fields["suggestWhichBrokerId"])
        await wire.close()
    if check == "true":
        assert found == (ResponseCode.PULL_OFFSET_MOVED, "3", "0")
    else:
        assert found == (ResponseCode.PULL_RETRY_IMMEDIATELY, "50", "0")


# --- tables -----------------------------------------------------------------------------------------
async def test_topics_groups_and_offsets_are_the_masters(pair: Cluster) -> None:
    """By what changed, every second; what is deleted at the master goes here, too."""
    clock = cast(VirtualClock, pair.clock)
    master, slave = pair.broker(0), pair.slave()
    await send(pair, 5)
    wire = await connect(master)
    await wire.pull("T", consumer_group="readers")
    offset = UpdateConsumerOffsetRequestHeader(consumer_group="readers", topic="T", queue_id=0, commit_offset=4)
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    await clock.run_for(14)
    assert dict(slave.topics.table) == dict(master.topics.table)
    assert slave.topics.version == master.topics.version
    assert dict(slave.groups.table) == dict(master.groups.table)
    assert slave.groups.version == master.groups.version
    assert slave.offsets.query("readers", "T", 0) == 4
    master.topics.delete("T")
    await clock.run_for(2)
    assert slave.topics.get("T") is None
    await pair.stop_slave()
    await pair.stop_broker(0)
    await wire.close()
    slave = await pair.start_slave()
    assert (slave.offsets.query("readers", "T", 0), slave.topics.get("T")) == (4, None)
    assert "readers" in slave.groups.table


async def test_a_failure_that_nobody_expected_is_logged_and_the_tables_are_copied_the_next_time(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, master, slave = cast(VirtualClock, pair.clock), pair.broker(0), pair.slave()
    await send(pair, 5)

    def failing(*_: object) -> None:
        raise RuntimeError("something that nobody expected")

    with monkeypatch.context() as patched:
        patched.setattr(slave.topics, "take_over", failing)
        assert master.topics.delete("T")
        await clock.run_for(4)
    assert "something that nobody expected" in caplog.text
    assert slave.topics.version != master.topics.version
    await clock.run_for(11)
    assert slave.topics.version == master.topics.version


async def test_a_table_that_fails_stops_no_other_and_the_slave_says_which_lags(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pair.broker(0), pair.slave()
    await copied(pair)
    master.groups.put(SubscriptionGroupConfig(group_name="new"))

    def failing(*_: object) -> None:
        raise BodyError("it cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(slave.offsets, "take_over", failing)
        await slave.slave.tables.copy()
    assert slave.groups.table == master.groups.table
    assert slave.slave.runtime_info()["tablesTrouble"] == "consumer offsets: it cannot be read"
    await slave.slave.tables.copy()
    assert slave.slave.tables.trouble == ""


async def test_offsets_larger_than_a_frame_are_copied_and_what_comes_after_them(pair: Cluster) -> None:
    """75,000 pairs of long names are above 16 MB: a slave took neither them nor the groups."""
    master, slave = pair.broker(0), pair.slave()
    await copied(pair)
    for number in range(75_000):
        assert master.offsets.commit(f"{'g' * 110}-{number}", f"{'t' * 120}-{number}", 0, 0)
    master.groups.put(SubscriptionGroupConfig(group_name="new"))
    assert sum(len(key) for key in master.offsets.table) > MAX_FRAME_BYTES
    await slave.slave.tables.copy()
    assert slave.slave.tables.trouble == ""
    assert slave.offsets.table == master.offsets.table
    assert slave.groups.table == master.groups.table


async def test_the_topic_that_a_message_waits_for_is_known_at_once_whatever_its_body_says(pair: Cluster) -> None:
    await copied(pair)
    wire = await connect(pair.broker(0))
    await wire.send("Later", b"\x02REAL_TOPIC\x01Other\x02", properties="DELAY\x011\x02")
    await wire.close()
    await settle()
    assert ("Later" in pair.slave().topics.table, "Other" in pair.slave().topics.table) == (True, False)


async def test_no_offset_is_beyond_what_the_slave_has(pair: Cluster) -> None:
    """The slave may become the master, and what it does not have was then not consumed."""
    await send(pair, 5)
    await copied(pair)
    pair.broker(0).offsets.set_offset("readers", "T", 0, 10)
    await pair.slave().slave.tables.copy()
    assert pair.slave().offsets.query("readers", "T", 0) == pair.slave().store.queue("T", 0).max_offset() == 5


# --- starting ---------------------------------------------------------------------------------------
def test_a_slave_needs_a_number_of_its_own(tmp_path: Path) -> None:
    """As in ``BrokerStartup``: a slave without one does not start, a master has 0 whatever is said."""
    path = tmp_path / "broker.conf"
    path.write_text("brokerRole=SLAVE\n")
    with pytest.raises(ConfigError, match="brokerId must be greater than 0"):
        load_broker_config(path)
    path.write_text("brokerRole=SLAVE\nbrokerId=2\nhaMasterAddress=10.0.0.1:10912\n")
    assert load_broker_config(path)[0].broker_id == 2
    path.write_text("brokerRole=SYNC_MASTER\nbrokerId=2\n")
    assert load_broker_config(path)[0].broker_id == 0
    path.write_text("brokerRole=SLAVE\nbrokerId=2\nhaMasterAddress=nowhere\n")
    with pytest.raises(ConfigError, match="haMasterAddress=nowhere"):
        load_broker_config(path)
