"""A broker that starts, after any end of the one before it, shows no message of an earlier life of a topic."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from tests.broker.replication.following import bodies, connect, copied

from cometmq.broker.controller import Broker
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import Cluster, VirtualClock

GROUP = "readers"


@pytest.fixture
async def pair(clock: VirtualClock) -> AsyncIterator[Cluster]:
    """A master and its slave, with small log files."""
    async with Cluster(slaves=1, clock=clock, broker_keys={"mappedFileSizeCommitLog": "65536"}) as cluster:
        yield cluster


async def send(master: Broker, *texts: str, topic: str = "T", queue_id: int = 0) -> None:
    wire = await connect(master)
    for text in texts:
        assert (await wire.send(topic, text.encode(), queue_id=queue_id)).code == ResponseCode.SUCCESS
    await wire.close()


async def delete(master: Broker, topic: str = "T") -> None:
    """Delete a topic, as tools do."""
    wire = await connect(master)
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": topic})).code == ResponseCode.SUCCESS
    await wire.close()


async def made_anew(cluster: Cluster, new: int) -> list[bytes]:
    """Five messages in each of two queues, the end of the topic, and ``new`` messages in queue 0 of the next one."""
    await cluster.create_topic("T", queues=2)
    for queue_id in (0, 1):
        await send(cluster.broker(0), *(f"old{number}" for number in range(5)), queue_id=queue_id)
    await delete(cluster.broker(0))
    await cluster.create_topic("T", queues=2)
    await send(cluster.broker(0), *(f"new{number}" for number in range(new)))
    return [b"new%d" % number for number in range(new)]


def lose_files(cluster: Cluster, lost: str) -> None:
    root = cluster.store_root(0)
    for name in lost.split():
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


LOST = ["consumequeue", "consumequeue comet/position.json", "consumequeue/T", "comet/position.json", "checkpoint"]


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("new", [0, 1, 2, 7])
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_queues_that_are_made_from_the_log_have_the_last_life_only(
    pair: Cluster, end: str, new: int, lost: str
) -> None:
    expected = await made_anew(pair, new)
    await (pair.stop_broker(0) if end == "stopped" else pair.kill_broker(0))
    lose_files(pair, lost)
    master = await pair.start_broker(0)
    assert await bodies(master, "T") == expected
    assert await bodies(master, "T", 1) == []
    await send(master, "next")
    await send(master, "next", queue_id=1)
    master = await pair.restart_broker(0)
    assert await bodies(master, "T") == [*expected, b"next"]
    assert await bodies(master, "T", 1) == [b"next"]


@pytest.mark.parametrize("lost", ["", *LOST])
@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_kill_right_after_the_deletion_brings_nothing_back(
    pair: Cluster, is_made_anew: bool, lost: str
) -> None:
    await pair.create_topic("T", queues=1)
    await send(pair.broker(0), *"abcde")
    pair.broker(0).offsets.set_offset(GROUP, "T", 0, 5)
    pair.broker(0).offsets.save()
    await delete(pair.broker(0))
    if is_made_anew:
        await pair.create_topic("T", queues=1)
        await send(pair.broker(0), "new")
    await pair.kill_broker(0)
    lose_files(pair, lost)
    master = await pair.start_broker(0)
    assert ("T" in master.topics.table) == is_made_anew
    assert master.offsets.query(GROUP, "T", 0) == -1
    assert await bodies(master, "T") == [b"new"] * is_made_anew
    await pair.create_topic("T", queues=1)
    await send(master, "next")
    assert await bodies(master, "T") == [*[b"new"] * is_made_anew, b"next"]


async def test_many_lives_and_kills_show_the_last_life(pair: Cluster) -> None:
    for life in range(4):
        await pair.create_topic("T", queues=1)
        count = (5, 3, 1, 2)[life]
        await send(pair.broker(0), *(f"{life}/{number}" for number in range(count)))
        await pair.kill_broker(0)
        if life % 2:
            lose_files(pair, "consumequeue")
        master = await pair.start_broker(0)
        expected = [b"%d/%d" % (life, number) for number in range(count)]
        assert await bodies(master, "T") == expected
        pair.broker(0).offsets.set_offset(GROUP, "T", 0, count)
        pair.broker(0).offsets.save()
        if life < 3:
            await delete(master)
            await pair.kill_broker(0)
            lose_files(pair, "consumequeue")
            master = await pair.start_broker(0)
            assert master.offsets.query(GROUP, "T", 0) == -1
            assert "T" not in master.topics.table


@pytest.mark.parametrize("lost", LOST[:2])
async def test_a_slave_makes_the_queues_of_the_last_life_only(pair: Cluster, lost: str) -> None:
    expected = await made_anew(pair, 2)
    await copied(pair)
    await pair.kill_broker(0)
    master = await pair.promote_slave()
    assert await bodies(master, "T") == expected
    await pair.stop_broker(0)
    lose_files(pair, lost)
    master = await pair.start_broker(0)
    assert await bodies(master, "T") == expected
    assert await bodies(master, "T", 1) == []


@pytest.mark.parametrize("lost", ["", "comet/position.json"])
async def test_a_deletion_that_a_kill_interrupts_is_finished_by_the_start(pair: Cluster, lost: str) -> None:
    """Its note was written, and some of the files were still there."""
    await pair.create_topic("T", queues=2)
    for queue_id in (0, 1):
        await send(pair.broker(0), *"abcde", queue_id=queue_id)
    await pair.restart_broker(0)
    queues = pair.store_root(0) / "consumequeue" / "T"
    shutil.copytree(queues, queues.with_name("kept"))
    await delete(pair.broker(0))
    await pair.create_topic("T", queues=2)
    await pair.kill_broker(0)
    queues.with_name("kept").rename(queues)
    lose_files(pair, lost)
    master = await pair.start_broker(0)
    for queue_id in (0, 1):
        assert await bodies(master, "T", queue_id) == []
        await send(master, "new", queue_id=queue_id)
    master = await pair.restart_broker(0)
    for queue_id in (0, 1):
        assert await bodies(master, "T", queue_id) == [b"new"]


@pytest.mark.parametrize("code", [RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC])
async def test_queues_that_end_without_a_configuration_do_not_come_back(pair: Cluster, code: RequestCode) -> None:
    await pair.create_topic("T", queues=1)
    await send(pair.broker(0), *"abcde")
    pair.broker(0).topics.delete("T")
    wire = await connect(pair.broker(0))
    assert (await wire.call(code, ext={"topic": "T"})).code == ResponseCode.SUCCESS
    await wire.close()
    await pair.create_topic("T", queues=1)
    await send(pair.broker(0), "new")
    await pair.kill_broker(0)
    lose_files(pair, "consumequeue comet/position.json")
    assert await bodies(await pair.start_broker(0), "T") == [b"new"]


async def test_a_deletion_behind_the_end_of_the_log_hides_no_later_message(pair: Cluster) -> None:
    """The log began anew, from 0, and its messages come where the old one had those of the earlier life."""
    await made_anew(pair, 0)
    await pair.stop_broker(0)
    lose_files(pair, "commitlog consumequeue index checkpoint comet/position.json comet/pop.bin")
    master = await pair.start_broker(0)
    await send(master, "new0", "new1")
    await pair.kill_broker(0)
    lose_files(pair, "consumequeue comet/position.json")
    assert await bodies(await pair.start_broker(0), "T") == [b"new0", b"new1"]
