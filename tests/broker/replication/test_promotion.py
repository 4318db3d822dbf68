"""A slave is made the master: what was acknowledged is there, what waited is delivered once, runs stay fenced."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.replication.following import PATIENCE_S, bodies, connect, copied, replicated
from tests.broker.send.sequences import once_read, open_producer
from tests.broker.send.sequences import send as send_sequence
from tests.broker.tables.locking import lock
from tests.broker.transacting import COMMIT, end, round_of_checks, send_half
from tests.broker.transacting import delivered as committed_bodies
from tests.broker.wire import records

from cometmq.broker.controller import Broker
from cometmq.broker.replication.ha_client import HAClient
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import RecallMessageRequestHeader, UpdateConsumerOffsetRequestHeader
from cometmq.testing import Cluster, VirtualClock, wait_until

FILE_BYTES = 64 * 1024
DAY_S = 86_400
STORED = (ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE)
"""The answers of a SYNC_MASTER with and without a slave."""


@pytest.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A SYNC_MASTER and its slave."""
    keys = {"mappedFileSizeCommitLog": str(FILE_BYTES), "brokerRole": "SYNC_MASTER"}
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as cluster:
        await replicated(cluster)
        yield cluster


async def fail_over(cluster: Cluster) -> Broker:
    """The master is killed, the slave takes its place."""
    await cluster.kill_broker(0)
    return await cluster.promote_slave()


async def later(cluster: Cluster, body: bytes, seconds: float) -> str:
    """Send a message with a delay of its own; what recalls it."""
    due_ms = cluster.clock.now_ms() + round(seconds * 1000)
    wire = await connect(cluster.broker(0))
    text = f"UNIQ_KEY\x01{body.decode()}\x02TIMER_DELIVER_MS\x01{due_ms}"
    answer = await wire.send("Later", body, properties=text)
    await wire.close()
    assert answer.code in STORED, answer.remark
    return answer.ext_fields["recallHandle"]


async def test_all_that_a_sync_master_acknowledged_is_there(pair: Cluster) -> None:
    wire = await connect(pair.broker(0))
    sent = [b"%d" % number for number in range(30)]
    codes = {(await wire.send("T", body)).code for body in sent}
    assert codes == {ResponseCode.SUCCESS}
    offset = UpdateConsumerOffsetRequestHeader(consumer_group="readers", topic="T", queue_id=0, commit_offset=7)
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    await wire.close()
    await pair.slave().slave.tables.copy()
    master = await fail_over(pair)
    assert await bodies(master, "T") == sent
    assert master.offsets.query("readers", "T", 0) == 7
    wire = await connect(master)
    answer = await wire.send("T", b"next")
    assert answer.ext_fields["queueOffset"] == "30"
    await wire.close()


async def test_the_old_master_becomes_the_slave_of_the_new_one(pair: Cluster) -> None:
    wire = await connect(pair.broker(0))
    for number in range(10):
        await wire.send("T", b"%d" % number)
    await wire.close()
    master = await fail_over(pair)
    await pair.start_slave()
    await replicated(pair)
    wire = await connect(master)
    assert (await wire.send("T", b"10")).code == ResponseCode.SUCCESS  # and so a slave has it
    await wire.close()
    await copied(pair)
    assert await bodies(pair.slave(), "T") == [b"%d" % number for number in range(11)]


async def test_an_old_master_with_messages_of_its_own_says_so_and_is_filled_anew_once_empty(
    clock: VirtualClock,
) -> None:
    keys = {"mappedFileSizeCommitLog": str(FILE_BYTES)}
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as pair:
        await replicated(pair)
        await pair.stop_slave()
        wire = await connect(pair.broker(0))
        await wire.send("T", b"only at the old master")
        await wire.close()
        master = await fail_over(pair)
        slave = await pair.start_slave()
        follower = slave.slave.follower
        assert await wait_until(clock, lambda: "ends earlier" in (follower.trouble or ""), PATIENCE_S)
        await pair.stop_slave()
        pair.empty_slave()
        wire = await connect(master)
        await wire.send("T", b"of the new master")
        await wire.close()
        await pair.start_slave()
        await copied(pair)
        assert await bodies(pair.slave(), "T") == [b"of the new master"]


# --- messages that wait -------------------------------------------------------------------------
async def test_delay_levels_go_on_where_the_master_was(pair: Cluster) -> None:
    """Delivered before the last copy, delivered after it, and due after the failover: each once."""
    clock = cast(VirtualClock, pair.clock)
    wire = await connect(pair.broker(0))
    for number, level in enumerate((1, 2, 4, 5)):  # 1 s, 5 s, 30 s, 1 min
        await wire.send("Delayed", b"%d" % number, properties=f"DELAY\x01{level}\x02")
    await clock.run_for(3)
    await copied(pair)
    await clock.run_for(4)  # the second is delivered, and no copy says so
    assert await bodies(pair.broker(0), "Delayed") == [b"0", b"1"]
    await wire.close()
    await replicated(pair)
    master = await fail_over(pair)
    await clock.run_for(90)
    assert await bodies(master, "Delayed") == [b"0", b"1", b"2", b"3"]


async def test_any_delay_goes_on_where_the_master_was(pair: Cluster) -> None:
    clock = cast(VirtualClock, pair.clock)
    await later(pair, b"0", 2)
    await later(pair, b"1", 20)
    await later(pair, b"2", 3 * DAY_S)
    handle = await later(pair, b"3", 60)
    await clock.run_for(5)
    await copied(pair)
    await later(pair, b"4", 40)
    wire = await connect(pair.broker(0))
    header = RecallMessageRequestHeader(topic="Later", recall_handle=handle)
    assert (await wire.call(RequestCode.RECALL_MESSAGE, header)).code == ResponseCode.SUCCESS
    await wire.close()
    await clock.run_for(20)
    assert await bodies(pair.broker(0), "Later") == [b"0", b"1"]
    await replicated(pair)
    master = await fail_over(pair)
    await clock.skip(4 * DAY_S)
    assert Counter(await bodies(master, "Later")) == Counter([b"0", b"1", b"4", b"2"])


async def test_messages_that_wait_longer_than_the_log_is_kept_are_copied(pair: Cluster) -> None:
    """Also to a slave that is new, and never had the log that they came with."""
    clock = cast(VirtualClock, pair.clock)
    await pair.stop_slave()
    for number in range(50):
        await later(pair, b"%d" % number, 30 * DAY_S + number)
    wire = await connect(pair.broker(0))
    for _ in range(100):
        await wire.send("Fill", bytes(2000))
    await clock.run_for(5)
    master = pair.broker(0)
    for path in sorted(Path(master.config.commit_log).iterdir())[:-1]:
        os.utime(path, (0, 0))
    assert master.store.delete_expired_files() > 0
    assert master.store.queue("rmq_sys_wheel_timer", 0).min_offset() == 50
    await wire.close()
    await pair.start_slave()
    await clock.run_for(5)
    await copied(pair)
    master = await fail_over(pair)
    await later(pair, b"50", DAY_S)
    await clock.skip(31 * DAY_S)
    assert Counter(await bodies(master, "Later")) == Counter([b"%d" % number for number in range(51)])


async def test_queues_go_on_whose_messages_are_all_gone(pair: Cluster) -> None:
    """A slave that is new has none of their messages; consumers go on where they were, and miss nothing."""
    clock = cast(VirtualClock, pair.clock)
    await pair.stop_slave()
    wire = await connect(pair.broker(0))
    for number in range(5):
        await wire.send("Old", b"%d" % number)
    for _ in range(3):
        await wire.send("OldDelays", b"1", properties="DELAY\x011\x02")
    await clock.run_for(3)
    for _ in range(100):
        await wire.send("Fill", bytes(2000))
    offset = UpdateConsumerOffsetRequestHeader(consumer_group="readers", topic="Old", queue_id=0, commit_offset=5)
    await wire.call(RequestCode.UPDATE_CONSUMER_OFFSET, offset)
    await wire.close()
    await clock.run_for(15)
    for path in sorted(Path(pair.broker(0).config.commit_log).iterdir())[:-1]:
        os.utime(path, (0, 0))
    assert pair.broker(0).store.delete_expired_files() > 0
    await pair.start_slave()
    await copied(pair)
    await pair.kill_slave()  # what began without a message stays, too
    await pair.start_slave()
    await copied(pair)
    master = await fail_over(pair)
    assert master.offsets.query("readers", "Old", 0) == 5
    wire = await connect(master)
    assert (await wire.send("Old", b"5")).ext_fields["queueOffset"] == "5"
    assert (await wire.pull("Old", queue_offset=5)).code == ResponseCode.SUCCESS
    await wire.send("OldDelays", b"2", properties="DELAY\x011\x02")
    await clock.run_for(3)
    delivered = await wire.pull("OldDelays", queue_offset=3)
    assert [record.body for record in records(delivered)] == [b"2"]
    await wire.close()


async def test_a_day_that_is_another_one_at_the_master_is_copied_anew(pair: Cluster) -> None:
    """As at an old master that had copied what was delivered before the new one came to it."""
    clock = cast(VirtualClock, pair.clock)
    for number in range(5):
        await later(pair, b"%d" % number, DAY_S + number)
    await clock.run_for(3)
    await copied(pair)
    await pair.stop_slave()
    timer = pair.data / "broker-0-slave-1" / "comet" / "timer"
    (index,) = timer.glob("*.index")
    whole = index.read_bytes()
    index.write_bytes(whole[:56] + whole[:56] * 4)
    await pair.start_slave()
    await later(pair, b"5", DAY_S + 5)
    await clock.run_for(3)
    await copied(pair)
    assert index.read_bytes()[: len(whole)] == whole
    master = await fail_over(pair)
    await clock.skip(2 * DAY_S)
    assert await bodies(master, "Later") == [b"%d" % number for number in range(6)]


# --- transactions, sequences, locks -------------------------------------------------------------
async def test_transactions_go_on(pair: Cluster) -> None:
    """Committed before stays committed once; open ones are ended at the new master, by the ids of the old one."""
    wire = await connect(pair.broker(0))
    done = await send_half(wire, "k0", b"done")
    open_one = await send_half(wire, "k1", b"open")
    await end(wire, done, COMMIT)
    await wire.close()
    await replicated(pair)
    master = await fail_over(pair)
    assert master.transactions.open.count == 1
    wire = await connect(master)
    assert (await end(wire, done, COMMIT)).code == ResponseCode.SUCCESS
    assert (await end(wire, open_one, COMMIT)).code == ResponseCode.SUCCESS
    await wire.close()
    await round_of_checks(master)
    assert committed_bodies(master) == [b"done", b"open"]


@pytest.mark.parametrize("copies", [True, False])
async def test_sequences_hold_and_zombies_stay_fenced(pair: Cluster, copies: bool) -> None:
    """With the copied table, and from the log alone; a run that had only begun fences the one before, too."""
    wire = await connect(pair.broker(0))
    await open_producer(wire)
    await send_sequence(wire, range(3))
    if copies:
        await pair.broker(0).producers.save()
        await copied(pair)
        assert (pair.data / "broker-0-slave-1" / "comet" / "producers.json").exists()
    await send_sequence(wire, range(3, 6))
    assert (await open_producer(wire)).epoch == 2
    await wire.close()
    await replicated(pair)
    master = await fail_over(pair)
    wire = await connect(master)
    zombie = await once_read(lambda: send_sequence(wire, range(6, 8), epoch=1))
    assert zombie.code == ResponseCode.PRODUCER_FENCED
    assert (await send_sequence(wire, range(3, 6), epoch=2)).code == ResponseCode.SUCCESS
    assert (await send_sequence(wire, range(6, 8), epoch=2)).code in STORED
    assert (await send_sequence(wire, range(9, 10), epoch=2)).code == ResponseCode.SEQUENCE_GAP
    await wire.close()
    assert await bodies(master, "T") == [b"%d" % number for number in range(8)]


async def test_locked_queues_stay_with_their_holders(pair: Cluster) -> None:
    """As after a restart of the master: what was copied is trusted for as long as clients trust it."""
    queues = [MessageQueue("T", "broker-0", number) for number in range(4)]
    wire = await connect(pair.broker(0))
    assert await lock(wire, "one", queues) == set(queues)
    await wire.close()
    await copied(pair)
    master = await fail_over(pair)
    wire = await connect(master)
    assert await lock(wire, "two", queues) == set()
    assert await lock(wire, "one", queues) == set(queues)
    await wire.close()


async def test_a_table_that_knows_more_than_the_log_here_is_not_used(clock: VirtualClock) -> None:
    """The master's file is ahead of a slave that is behind: what it knows of was not replicated, and comes again."""
    async with Cluster(slaves=1, clock=clock) as pair:
        await replicated(pair)
        wire = await connect(pair.broker(0))
        await open_producer(wire)
        await send_sequence(wire, range(3))
        await copied(pair)
        follower = pair.slave().slave.follower
        assert isinstance(follower, HAClient)
        follower.append_transfers = lambda *_: None  # type: ignore[method-assign]
        await send_sequence(wire, range(3, 6))
        await pair.broker(0).producers.save()
        await clock.run_for(1)
        await pair.slave().slave.tables.copy()
        await wire.close()
        master = await fail_over(pair)
        wire = await connect(master)
        assert (await open_producer(wire)).lanes["T/0"].next == 3
        assert (await send_sequence(wire, range(3, 6), epoch=2)).code == ResponseCode.SUCCESS
        await wire.close()
        assert await bodies(master, "T") == [b"%d" % number for number in range(6)]


# --- anything in any order ----------------------------------------------------------------------
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send")),
        st.tuples(st.just("level"), st.sampled_from([1, 2, 3])),
        st.tuples(st.just("later"), st.sampled_from([0.5, 4, 11, 40, 2 * DAY_S])),
        st.tuples(st.just("copy")),
        st.tuples(st.just("kill slave")),
        st.tuples(st.just("fail over")),
        st.tuples(st.just("pass"), st.sampled_from([0.3, 2, 9])),
    ),
    min_size=4,
    max_size=14,
)


@pytest.mark.crash
@given(steps=_STEPS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happens_each_message_is_there_once(steps: list[tuple[object, ...]]) -> None:
    """Messages, delays of both kinds, copies, kills and failovers in any order; the old master is the next slave."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[object, ...]]) -> None:
    clock = VirtualClock()
    keys = {"mappedFileSizeCommitLog": str(FILE_BYTES), "brokerRole": "SYNC_MASTER"}
    sent: Counter[bytes] = Counter()
    async with Cluster(slaves=1, clock=clock, broker_keys=keys) as pair:
        await replicated(pair)
        for number, step in enumerate(steps):
            body = b"%d" % number
            if step[0] in ("send", "level"):
                wire = await connect(pair.broker(0))
                properties = f"DELAY\x01{step[1]}\x02" if step[0] == "level" else ""
                assert (await wire.send("Later", body, properties=properties)).code == ResponseCode.SUCCESS
                await wire.close()
                sent[body] += 1
            elif step[0] == "later":
                await later(pair, body, cast(float, step[1]))
                sent[body] += 1
            elif step[0] == "copy":
                await copied(pair)
            elif step[0] == "kill slave":
                await pair.kill_slave()
                await pair.start_slave()
                await replicated(pair)
            elif step[0] == "fail over":
                await replicated(pair)
                await fail_over(pair)
                await pair.start_slave()
                await replicated(pair)
            else:
                await clock.run_for(cast(float, step[1]))
        await replicated(pair)
        master = await fail_over(pair)
        await clock.run_for(60)
        await clock.skip(3 * DAY_S)
        assert Counter(await bodies(master, "Later")) == sent, steps


async def test_a_slave_acknowledges_a_message_of_a_new_topic_only_once_the_topic_is_on_its_disk(pair: Cluster) -> None:
    """Killed before that it would hide the message, whether it is started again or made the master."""
    slave, held = pair.slave(), threading.Event()
    slave.slave.follower._copied._tables._worker.submit(held.wait)
    wire = await connect(pair.broker(0))
    try:
        sending = asyncio.ensure_future(wire.send("Fresh", b"acknowledged"))
        async with asyncio.timeout(30):  # of the real clock: the virtual one waits for the thread that is held
            while slave.topics.get("Fresh") is None:
                await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert not sending.done()
        assert slave.topics.is_unsaved("Fresh")
    finally:
        held.set()
    assert (await sending).code == ResponseCode.SUCCESS
    await pair.kill_slave()
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    assert await bodies(master, "Fresh") == [b"acknowledged"]
    await wire.close()


async def test_a_killed_slave_acknowledges_what_it_has_only_once_its_topics_are_on_its_disk(pair: Cluster) -> None:
    wire = await connect(pair.broker(0))
    assert (await wire.send("Fresh", b"acknowledged")).code == ResponseCode.SUCCESS
    await wire.close()
    await pair.kill_slave()
    for table in (pair._slaves[0, 1].root / "comet" / "tables").glob("topics*"):
        table.unlink()
    slave = await pair.start_slave()
    slaves = pair.broker(0).ha.slaves
    assert await wait_until(pair.clock, lambda: any(slave.has_begun for slave in slaves), PATIENCE_S)
    assert slave.topics.get("Fresh") is not None
    assert not slave.topics.is_unsaved("Fresh")


async def test_messages_of_a_level_survive_their_log_file_at_master_and_slave(pair: Cluster) -> None:
    """The master moves them into the timer, the slave keeps its file until it knows that."""
    clock = cast(VirtualClock, pair.clock)
    wire = await connect(pair.broker(0))
    await wire.send("Delayed", b"in 2 h", properties="DELAY\x0118\x02")
    for _ in range(100):
        await wire.send("Fill", bytes(2000))
    await wire.close()
    await replicated(pair)
    await clock.run_for(5)
    master, slave = pair.broker(0), pair.slave()
    for broker in (master, slave):
        for path in sorted(Path(broker.config.commit_log).iterdir())[:-1]:
            os.utime(path, (0, 0))
    assert (slave.store.delete_expired_files(), master.store.delete_expired_files()) == (0, 0)
    assert await wait_until(clock, lambda: master.store.delete_expired_files() > 0, PATIENCE_S)
    await replicated(pair)
    await copied(pair)
    assert slave.store.delete_expired_files() > 0
    promoted = await fail_over(pair)
    assert promoted.store.min_physical_offset > 0
    await clock.skip(7_300)
    assert await bodies(promoted, "Delayed") == [b"in 2 h"]
