from __future__ import annotations

import contextlib
import os

import pytest
from tests.helpers.waiting import answered, real_time
from tests.interop.systems import CLUSTER_NAME, Deployment

from cometmq.client import Admin, Message, MessageQueue, OtherTopicError, Producer, PullConsumer
from cometmq.client.admin.topics import ROUTES_AT_ONCE
from cometmq.client.errors import BrokerError, ClientError, RouteNotFoundError
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import SubscriptionGroupConfig


async def in_every_queue(admin: Admin, topic: str, count: int) -> None:
    """Wait until each queue shows that many messages: Apache tells a little after it has acknowledged them."""

    async def shown() -> bool:
        rows = (await admin.topic_stats(topic)).offset_table.values()
        return {(row.min_offset, row.max_offset) for row in rows} == {(0, count)}

    await answered(shown)


async def test_the_cluster_names_its_brokers(server: Deployment, admin: Admin) -> None:
    info = await admin.cluster_info()
    assert info.cluster_addr_table[CLUSTER_NAME] == ["broker-a"]
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: server.broker.address}
    assert await admin.masters(CLUSTER_NAME) == {"broker-a": server.broker.address}
    assert await admin.masters("other") == {}
    with pytest.raises(ClientError, match="cluster other"):
        await admin.create_topic("T", cluster="other")


async def test_the_broker_tells_about_itself(server: Deployment, admin: Admin) -> None:
    async def told() -> dict[str, str]:
        with contextlib.suppress(BrokerError):  # Apache cannot answer in its first second
            return await admin.runtime_info(server.broker.address)
        return {}

    info = await answered(told)
    assert {"brokerVersionDesc", "commitLogMaxOffset", "msgPutTotalTodayNow"} <= info.keys()


async def test_topics_come_change_and_go(server: Deployment, admin: Admin, topic: str) -> None:
    assert topic in await admin.topics()
    (queues,) = (await admin.topic_route(topic)).queue_datas
    assert (queues.read_queue_nums, queues.write_queue_nums, queues.perm) == (4, 4, 6)
    assert [queue.queue_id for queue in await admin.queues(topic)] == [0, 1, 2, 3]
    await admin.create_topic(topic, queues=6, write_queues=5, perm=6)
    config = (await admin.topic_configs(server.broker.address))[topic]
    assert (config.read_queue_nums, config.write_queue_nums) == (6, 5)
    await admin.delete_topic(topic)
    with pytest.raises(RouteNotFoundError):
        await admin.topic_route(topic)
    with pytest.raises(ValueError, match="illegal"):
        await admin.create_topic("a/b")


async def test_the_routes_of_many_topics_are_those_of_each(admin: Admin, topic: str) -> None:
    steps: list[int] = []
    wanted = [*(f"missing-{number}" for number in range(ROUTES_AT_ONCE)), topic, "TBW102"]
    routes = await admin.topic_routes(wanted, steps.append)
    assert routes == {name: await admin.topic_route(name) for name in (topic, "TBW102")}
    assert steps == [ROUTES_AT_ONCE, 2]
    assert await admin.topic_routes([]) == {}


async def test_groups_come_and_go(admin: Admin, group: str) -> None:
    await admin.create_group(SubscriptionGroupConfig(group_name=group, retry_max_times=3))
    assert (await admin.groups())[group].retry_max_times == 3
    await admin.delete_group(group, remove_offsets=True)
    assert group not in await admin.groups()
    with pytest.raises(ValueError, match="illegal"):
        await admin.create_group("a/b")


async def test_statistics_and_progress_count_messages(server: Deployment, admin: Admin, topic: str, group: str) -> None:
    async with Producer("p", server.address) as producer:
        await producer.send_many([Message(topic, b"x") for _ in range(8)])
    await in_every_queue(admin, topic, 2)
    async with PullConsumer(group, server.address) as consumer:
        queue = (await consumer.queues(topic))[0]
        await consumer.pull(queue, 0)
        await consumer.commit(queue, 1)
    progress = await admin.consume_progress(group, topic)
    assert next(row for row in progress.queues if row.queue == queue).lag == 1
    assert progress.lag == sum(row.lag for row in progress.queues)
    assert await admin.groups_of_topic(topic) == [group]


async def test_an_offline_group_is_moved_by_time(server: Deployment, admin: Admin, topic: str, group: str) -> None:
    await admin.create_group(group)
    async with Producer("p", server.address) as producer:
        await producer.send_many([Message(topic, b"x") for _ in range(8)])
    await in_every_queue(admin, topic, 2)
    assert set((await admin.reset_offset(group, topic, -1)).values()) == {2}
    assert (await admin.consume_progress(group, topic)).lag == 0
    assert set((await admin.reset_offset(group, topic, 0)).values()) == {0}
    assert (await admin.consume_progress(group, topic)).lag == 8


async def test_a_time_in_a_batch_leads_to_its_first_message(server: Deployment, admin: Admin, topic: str) -> None:
    await admin.create_topic(topic, queues=1)
    async with Producer("p", server.address) as producer, PullConsumer(f"{topic}-readers", server.address) as consumer:
        for _ in range(5):
            await producer.send(Message(topic, b"before"))
        await producer.send_batch([Message(topic, b"batch") for _ in range(101)])
        for _ in range(5):
            await producer.send(Message(topic, b"after"))
        (queue,) = await consumer.queues(topic)
        await answered(lambda: _is_full(consumer, queue, 111))
        times: list[int] = []
        while len(times) < 111:
            times += [message.store_timestamp for message in (await consumer.pull(queue, len(times), 111)).messages]
        assert len({times[number] for number in range(5, 106)}) == 1
        for wanted in {0} | {stored + near for stored in times for near in (-1, 0, 1)}:
            expected = next((number for number, stored in enumerate(times) if stored >= wanted), 111)
            assert await consumer.offsets.at_time(queue, wanted) == expected
    await admin.reset_offset(f"{topic}-readers", topic, times[-1] + 1)
    assert await admin.offsets.committed(f"{topic}-readers", queue) == 111


async def _is_full(consumer: PullConsumer, queue: MessageQueue, count: int) -> bool:
    return await consumer.offsets.max(queue) == count


async def test_messages_are_found_by_id_and_key(server: Deployment, admin: Admin, topic: str) -> None:
    async with Producer("p", server.address) as producer:
        result = await producer.send(Message(topic, b"found", keys=("key-1", "key-2")))
        await producer.send(Message(topic, b"other", keys=("key-3",)))
    assert (await admin.message_by_id(result.offset_msg_id)).body == b"found"
    found = await answered(lambda: admin.query_message(topic, "key-2"))
    assert [message.body for message in found] == [b"found"]
    assert (await admin.message_by_id(result.msg_id, topic)).body == b"found"
    assert await admin.query_message(topic, "no-such-key") == []


async def test_messages_whose_topic_and_key_have_the_hash_of_others_are_not_taken_for_them(
    server: Deployment, admin: Admin, topic: str
) -> None:
    mine, theirs = f"Aa{topic}", f"BB{topic}"  # Java's hashes of both are equal, and so those of topic and key
    for name in (mine, theirs):
        await admin.create_topic(name, queues=1)
    async with Producer("p", server.address) as producer:
        wanted = await producer.send(Message(mine, b"mine", keys=["Aa"]))
        others = [await producer.send(Message(theirs, b"theirs", keys=[key])) for key in ("Aa", "BB")]
        await producer.send(Message(mine, b"another key", keys=["BB"]))
    found = await answered(lambda: admin.query_message(mine, "Aa"))
    assert [message.body for message in found] == [b"mine"]
    assert (await admin.message_by_id(wanted.offset_msg_id, mine)).body == b"mine"
    with pytest.raises(OtherTopicError, match=f"belongs to topic {theirs}, not to {mine}"):
        await admin.message_by_id(others[0].offset_msg_id, mine)
    with pytest.raises(ValueError, match="id"):
        await admin.message_by_id("nonsense")


async def test_a_query_by_time_gives_the_messages_of_that_time_to_the_millisecond(
    server: Deployment, admin: Admin, topic: str
) -> None:
    async with Producer("p", server.address) as producer:
        for number in range(8):
            await producer.send(Message(topic, b"%d" % number, keys=["timed"]))
            await real_time(0.2)  # the brokers of others take the system's clock
    found = await answered(lambda: _found(admin, topic, 8))
    times = [message.store_timestamp for message in found]
    for first in times:
        for last in times:
            between = await admin.query_message(topic, "timed", begin_ms=first, end_ms=last)
            assert [message.store_timestamp for message in between] == [
                stored for stored in times if first <= stored <= last
            ]


async def _found(admin: Admin, topic: str, count: int) -> list[MessageExt]:
    found = await admin.query_message(topic, "timed")
    return found if len(found) == count else []


async def test_who_is_connected(server: Deployment, admin: Admin, group: str) -> None:
    with pytest.raises(BrokerError) as caught:
        await admin.consumer_connection(group)
    assert caught.value.code == 206
    assert caught.value.next_step == "start a consumer of the group first"
    async with Producer(group, server.address) as producer:
        await producer.queues("TBW102")
        await producer.instance.send_heartbeats()
        (connection,) = (await admin.producer_connection(group)).connection_set
        assert connection.client_id == producer.instance.client_id
        assert str(os.getpid()) in connection.client_id
