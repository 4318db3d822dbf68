from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.client.conftest import deploy
from tests.helpers.pace import slowness
from tests.helpers.waiting import answered, real_time, until, wait_for
from tests.interop.systems import Deployment, System, start_broker

from cometmq.client import (
    Admin,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    ProducerConfig,
    PushConfig,
    PushConsumer,
    SendMessageHook,
    SendStatus,
)
from cometmq.client.errors import RouteNotFoundError
from cometmq.errors import CometMQError

pytestmark = pytest.mark.crash


async def test_a_broker_killed_and_started_again_loses_nothing_that_was_acknowledged(own_server: Deployment) -> None:
    acknowledged: set[int] = set()
    refused: set[int] = set()
    seen: Counter[int] = Counter()
    stop = asyncio.Event()

    async def produce(producer: Producer, start: int) -> None:
        number = start
        while not stop.is_set():
            try:
                await producer.send(Message("Crash", b"%d" % number), timeout_s=2)
                acknowledged.add(number)
            except CometMQError:
                refused.add(number)
                await real_time(0.05)  # as a program would, before its next try
            number += 8

    async def listener(messages: Sequence[MessageExt]) -> None:
        seen.update(int(message.body) for message in messages)

    async with Admin(own_server.address) as admin:
        await admin.create_topic("Crash", queues=4)
    config = PushConfig(
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, consume_batch_size=32, pull_error_delay_s=0.2
    )
    consumer = PushConsumer("crash", listener, own_server.address, config=config)
    await consumer.subscribe("Crash")
    async with consumer, Producer("crash-producer", own_server.address) as producer:
        tasks = [asyncio.create_task(produce(producer, start)) for start in range(8)]
        await until(lambda: len(acknowledged) > 200)
        own_server.broker.kill()
        await until(lambda: refused, timeout_s=60)
        before = len(acknowledged)
        await asyncio.to_thread(own_server.start_again, own_server.broker.system)
        await until(lambda: len(acknowledged) > before + 200, timeout_s=60)
        async with Admin(own_server.address) as admin:

            async def is_member() -> bool:
                return await admin.consumer_ids("crash") == [consumer.instance.client_id]

            await answered(is_member, timeout_s=25)  # not only at the next heartbeat, in 30 s
        stop.set()
        await asyncio.gather(*tasks)
        await until(lambda: acknowledged <= seen.keys(), timeout_s=60)
    assert len(acknowledged) > 400


async def test_a_send_goes_on_when_the_broker_comes_back_in_time(own_server: Deployment) -> None:
    config = ProducerConfig(send_timeout_s=60)
    async with Producer("patient", own_server.address, config=config) as producer:
        await producer.send(Message("Patient", b"before"))
        own_server.broker.kill()
        sending = asyncio.create_task(producer.send(Message("Patient", b"meanwhile")))
        await asyncio.to_thread(own_server.start_again, own_server.broker.system)
        assert (await sending).queue.topic == "Patient"


async def test_two_brokers_a_failed_send_goes_to_the_other_one(own_server: Deployment) -> None:

    more = own_server.broker.directory.parent / "broker-b"
    settings = {**own_server.settings, "brokerName": "broker-b"}
    with start_broker(own_server.broker.system, more, own_server.address, settings) as other:
        async with Admin(own_server.address) as admin:
            await admin.create_topic("Two", queues=2)
        async with Producer("two", own_server.address) as producer:
            names = {(await producer.send(Message("Two", b"x"))).queue.broker_name for _ in range(8)}
            assert names == {"broker-a", "broker-b"}
            other.kill()
            results = [await producer.send(Message("Two", b"y")) for _ in range(8)]
            assert {result.queue.broker_name for result in results} == {"broker-a"}
            many = await producer.send_many([Message("Two", b"z")] * 8)
            assert {result.queue.broker_name for result in many} == {"broker-a"}


async def test_a_broker_that_stands_still_costs_one_attempt_not_the_whole_time(own_server: Deployment) -> None:
    more = own_server.broker.directory.parent / "broker-b"
    settings = {**own_server.settings, "brokerName": "broker-b"}
    config = ProducerConfig(
        send_timeout_s=60, send_msg_max_timeout_per_request_s=2, send_latency_fault_enable=True, retry_backoff_s=0
    )
    asked: list[str] = []
    hook = SendMessageHook(lambda context: asked.append(context.broker_address), None)
    with start_broker(own_server.broker.system, more, own_server.address, settings) as other:
        async with Admin(own_server.address) as admin:
            await admin.create_topic("Paused", queues=2)
        async with Producer("paused", own_server.address, config=config, send_hooks=[hook]) as producer:
            names = {(await producer.send(Message("Paused", b"x"))).queue.broker_name for _ in range(8)}
            assert names == {"broker-a", "broker-b"}
            asked.clear()
            stand_still(other.pid)
            try:
                results = [await producer.send(Message("Paused", b"y")) for _ in range(16)]
            finally:
                os.kill(other.pid, signal.SIGCONT)
    assert {result.queue.broker_name for result in results} == {"broker-a"}
    assert asked.count(other.address) < 4, "after the first silence the broker is left alone"


def stand_still(process_id: int) -> None:
    """Stop a process, and wait until the last of its threads stands: until then one may still answer."""
    os.kill(process_id, signal.SIGSTOP)
    tasks = Path(f"/proc/{process_id}/task")
    wait_for(
        lambda: all(task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()),
        "all threads stand",
    )


@pytest.mark.parametrize("how", ["killed", "stands still"])
async def test_a_broker_that_is_back_is_found_again_at_once(own_server: Deployment, how: str) -> None:
    more = own_server.broker.directory.parent / "broker-b"
    settings = {**own_server.settings, "brokerName": "broker-b"}
    config = ProducerConfig(
        send_timeout_s=30,
        send_msg_max_timeout_per_request_s=slowness(),
        send_latency_fault_enable=True,
        start_detector_enable=True,
        detect_interval_s=0.2,
    )

    async def used(producer: Producer) -> set[str]:
        return {(await producer.send(Message("Back", b"x"))).queue.broker_name for _ in range(8)}

    with ExitStack() as servers:
        other = servers.enter_context(start_broker(own_server.broker.system, more, own_server.address, settings))
        async with Admin(own_server.address) as admin:
            await admin.create_topic("Back", queues=2)
        async with Producer("back", own_server.address, config=config) as producer:
            assert await used(producer) == {"broker-a", "broker-b"}
            if how == "killed":
                other.kill()
            else:
                stand_still(other.pid)
            await used(producer)
            for _ in range(5):
                assert await used(producer) == {"broker-a"}
                await real_time(0.2)  # the detector looks at the broker meanwhile
            if how == "killed":
                again = (own_server.broker.system, more, own_server.address, settings, other.port)
                servers.enter_context(await asyncio.to_thread(start_broker, *again))
            else:
                os.kill(other.pid, signal.SIGCONT)

            async def both_are_used() -> bool:
                return await used(producer) == {"broker-a", "broker-b"}

            await answered(both_are_used)


@pytest.mark.interop
async def test_a_master_without_its_slave_says_so_and_no_further_attempt_can_do_better(tmp_path: Path) -> None:
    deployment = deploy(System.APACHE, tmp_path, brokerRole="SYNC_MASTER")
    try:
        for again, attempts in ((False, 1), (True, 3)):
            config = ProducerConfig(retry_another_broker_when_not_store_ok=again, send_timeout_s=60)
            async with Producer("alone", deployment.address, config=config) as producer:
                result = await producer.send(Message(f"Alone{attempts}", b"x"))
            assert result.status is SendStatus.SLAVE_NOT_AVAILABLE
            async with Admin(deployment.address) as admin:

                async def stored(topic: str = f"Alone{attempts}", count: int = attempts) -> bool:
                    try:
                        return sum(await ends(admin, topic)) >= count
                    except RouteNotFoundError:  # Apache answers the send before it registers the topic
                        return False

                await answered(stored)
                assert sum(await ends(admin, f"Alone{attempts}")) == attempts
    finally:
        deployment.close()


async def ends(admin: Admin, topic: str) -> list[int]:
    """The next offset of each queue."""
    stats = await admin.topic_stats(topic)
    return [offsets.max_offset for offsets in stats.offset_table.values()]
