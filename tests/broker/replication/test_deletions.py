"""What is deleted at the master leaves nothing at the slave, which shows no ghosts when it is promoted."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from tests.broker.pop.popping import GROUP, Popper
from tests.broker.replication.following import bodies, connect, copied, replicated
from tests.helpers.contents import stored

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import Cluster, VirtualClock


@pytest.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A master and its slave, with small log files."""
    async with Cluster(slaves=1, clock=clock, broker_keys={"mappedFileSizeCommitLog": "65536"}) as cluster:
        yield cluster


async def send(master: Broker, count: int, queue_id: int = 0) -> None:
    wire = await connect(master)
    for number in range(count):
        assert (await wire.send("T", b"%d" % number, queue_id=queue_id)).code == ResponseCode.SUCCESS
    await wire.close()


async def delete(pair: Cluster, topic: str) -> None:
    """Delete a topic at the master, as tools do."""
    wire = await connect(pair.broker(0))
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})).code == ResponseCode.SUCCESS
    await wire.close()


@pytest.mark.parametrize("is_made_anew", [False, True])
@pytest.mark.parametrize("is_away", [False, True])
async def test_a_topic_that_is_deleted_at_the_master_leaves_nothing_at_the_slave(
    pair: Cluster, is_made_anew: bool, is_away: bool
) -> None:
    """Also if it is made anew before the next copy, and if the slave has the log and the tables only later."""
    await pair.create_topic("T", queues=2)
    for queue_id in (0, 1):
        await send(pair.broker(0), 5, queue_id)
    pair.broker(0).offsets.set_offset("readers", "T", 0, 5)
    if not is_away:
        await copied(pair)
        assert pair.slave().offsets.query("readers", "T", 0) == 5
    else:
        await pair.stop_slave()
    await delete(pair, "T")
    if is_made_anew:
        await pair.create_topic("T", queues=2)
        await send(pair.broker(0), 2)
    if is_away:
        await pair.start_slave()
    await copied(pair)
    slave = pair.slave()
    assert ("T" in slave.topics.table) == is_made_anew
    assert [len(stored(slave, "T", queue_id)) for queue_id in (0, 1)] == [2 if is_made_anew else 0, 0]
    assert slave.offsets.groups_of("T") == set()
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    if not is_made_anew:
        await pair.create_topic("T", queues=2)
    await send(master, 1, 1)
    assert await bodies(master, "T", 1) == [b"0"]
    assert len(await bodies(master, "T", 0)) == (2 if is_made_anew else 0)


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_deletion_just_before_the_master_fails_is_known_to_the_promoted_slave(
    pair: Cluster, is_made_anew: bool
) -> None:
    """It has the log, and the tables of before; later starts do not delete what was made since."""
    await pair.create_topic("T", queues=2)
    for queue_id in (0, 1):
        await send(pair.broker(0), 5, queue_id)
    pair.broker(0).offsets.set_offset("readers", "T", 0, 5)
    await copied(pair)
    await delete(pair, "T")
    if is_made_anew:
        await pair.create_topic("T", queues=2)
        await send(pair.broker(0), 2)
    await replicated(pair)
    assert pair.slave().offsets.query("readers", "T", 0) == 5, "the tables are not copied"
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    assert ("T" in master.topics.table) == is_made_anew
    assert [len(stored(master, "T", queue_id)) for queue_id in (0, 1)] == [2 if is_made_anew else 0, 0]
    assert master.offsets.groups_of("T") == set()
    await pair.create_topic("T", queues=2)
    await send(master, 1, 1)
    master = await pair.restart_broker(0)
    assert await bodies(master, "T", 1) == [b"0"]
    assert len(await bodies(master, "T", 0)) == (2 if is_made_anew else 0)


async def delete_group(pair: Cluster, group: str, *, with_offsets: bool) -> None:
    wire = await connect(pair.broker(0))
    fields = {"groupName": group, "removeOffset": str(with_offsets).lower()}
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields)).code == ResponseCode.SUCCESS
    await wire.close()


@pytest.mark.parametrize("with_offsets", [False, True])
async def test_a_group_that_is_deleted_just_before_the_master_fails_is_gone_at_the_promoted_slave(
    pair: Cluster, with_offsets: bool
) -> None:
    """Its offsets stay if the deletion says so; later starts delete nothing of a group that is made anew."""
    master = pair.broker(0)
    await pair.create_topic("T", queues=1)
    await send(master, 5)
    for group in ("gone", "kept"):
        master.groups.put(SubscriptionGroupConfig(group_name=group))
        master.offsets.set_offset(group, "T", 0, 5)
    await copied(pair)
    await delete_group(pair, "gone", with_offsets=with_offsets)
    await replicated(pair)
    assert "gone" in pair.slave().groups.table, "the tables are not copied"
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    assert "gone" not in master.groups.table
    assert master.offsets.query("gone", "T", 0) == (-1 if with_offsets else 5)
    assert "kept" in master.groups.table
    assert master.offsets.query("kept", "T", 0) == 5
    master.groups.put(SubscriptionGroupConfig(group_name="gone"))
    master.offsets.set_offset("gone", "T", 0, 2)
    for _ in range(2):
        master = await pair.restart_broker(0)
        assert "gone" in master.groups.table
        assert master.offsets.query("gone", "T", 0) == 2


async def test_a_group_that_was_made_anew_before_the_tables_were_copied_stays(pair: Cluster) -> None:
    master = pair.broker(0)
    await pair.create_topic("T", queues=1)
    await send(master, 5)
    master.groups.put(SubscriptionGroupConfig(group_name="anew"))
    master.offsets.set_offset("anew", "T", 0, 5)
    await copied(pair)
    await delete_group(pair, "anew", with_offsets=True)
    master.groups.put(SubscriptionGroupConfig(group_name="anew"))
    master.offsets.set_offset("anew", "T", 0, 1)
    await copied(pair)
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    assert "anew" in master.groups.table
    assert master.offsets.query("anew", "T", 0) == 1


@pytest.mark.parametrize("is_known", [False, True])
async def test_offsets_of_a_deleted_group_do_not_come_back_after_a_kill(pair: Cluster, is_known: bool) -> None:
    """Also of a group that has offsets and no configuration."""
    master = pair.broker(0)
    await pair.create_topic("T", queues=1)
    await send(master, 5)
    if is_known:
        master.groups.put(SubscriptionGroupConfig(group_name="gone"))
    for group in ("gone", "kept"):
        master.offsets.set_offset(group, "T", 0, 5)
    master.offsets.save()
    await delete_group(pair, "gone", with_offsets=True)
    await pair.kill_broker(0)
    master = await pair.start_broker(0)
    assert master.offsets.query("gone", "T", 0) == -1
    assert master.offsets.query("kept", "T", 0) == 5


async def test_a_start_with_whole_tables_deletes_nothing_again(pair: Cluster) -> None:
    """Also if all that is derived from the log, and the table of deletions, are lost."""
    master = pair.broker(0)
    await pair.create_topic("T", queues=1)
    await send(master, 5)
    await delete(pair, "T")
    await pair.create_topic("T", queues=1)
    await send(master, 3)
    master.offsets.set_offset("readers", "T", 0, 2)
    await pair.create_topic("Empty", queues=1)
    await delete(pair, "Empty")
    await pair.create_topic("Empty", queues=1)
    await pair.stop_broker(0)
    shutil.rmtree(pair.store_root(0) / "comet")
    master = await pair.start_broker(0)
    assert "Empty" in master.topics.table
    assert master.offsets.query("readers", "T", 0) == 2
    assert len(await bodies(master, "T")) == 3


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
async def test_what_a_deleted_topic_or_group_popped_is_popped_no_more_at_the_promoted_slave(
    pair: Cluster, clock: VirtualClock, is_group: bool, is_ordered: bool
) -> None:
    await pair.create_topic("T", queues=1)
    await send(pair.broker(0), 4)
    popper = Popper(await connect(pair.broker(0)), clock, topic="T")
    assert len(await popper.pop(max_msg_nums=2, order=is_ordered)) == 2
    await copied(pair)
    if is_group:
        fields = {"groupName": GROUP, "removeOffset": "true"}
        assert (await popper.wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields)).code == ResponseCode.SUCCESS
    else:
        await delete(pair, "T")
        await pair.create_topic("T", queues=1)
        await send(pair.broker(0), 3)
    await popper.wire.close()
    await copied(pair)
    await pair.kill_broker(0)
    popper = Popper(await connect(await pair.promote_slave()), clock, topic="T")
    assert len(await popper.pop(order=is_ordered)) == (4 if is_group else 3)
    await popper.wire.close()


async def test_what_a_group_has_no_more_at_the_master_it_has_no_more_at_the_slave(pair: Cluster) -> None:
    master, slave = pair.broker(0), pair.slave()
    await pair.create_topic("T", queues=2)
    await send(master, 5)
    master.groups.put(SubscriptionGroupConfig(group_name="readers"))
    for group, queue_id in (("readers", 0), ("others", 0), ("others", 1)):
        master.offsets.set_offset(group, "T", queue_id, 0)
    await copied(pair)
    assert slave.offsets.of_queues("others", "T") == {0: 0, 1: 0}
    wire = await connect(master)
    fields = {"groupName": "readers", "removeOffset": "true"}
    assert (await wire.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=fields)).code == ResponseCode.SUCCESS
    await wire.close()
    master.offsets.forget(group="others")
    master.offsets.set_offset("others", "T", 1, 0)
    await copied(pair)
    assert "readers" not in slave.groups.table
    assert slave.offsets.groups_of("T") == {"others"}
    assert slave.offsets.of_queues("others", "T") == {1: 0}
