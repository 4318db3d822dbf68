"""Every key that may change at run time takes effect at run time: one case for each of them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.delay.test_recall import recall
from tests.broker.delayed import send_later
from tests.broker.metrics.metric_load import read
from tests.broker.pop.popping import Popper
from tests.broker.pull.test_sql_filter import RETRIES, heartbeat, sql, text_of
from tests.broker.send.replying import beat, post_reply, pushed, take
from tests.broker.transacting import checks, half_properties, join, next_checks, round_of_checks, send_half
from tests.broker.wire import Wire, pull_header, records
from tests.helpers.contents import stored
from tests.helpers.waiting import until

from cometmq.broker.config import BrokerConfig
from cometmq.broker.controller import Broker
from cometmq.client import Message, Producer
from cometmq.client.admin import Admin
from cometmq.errors import CometMQError
from cometmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from cometmq.message.properties import PRIORITY
from cometmq.options import options_of
from cometmq.remoting.bodies import TopicConfig
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.headers import UnregisterClientRequestHeader
from cometmq.store.disk import Disk
from cometmq.testing import Cluster, VirtualClock

DAY_S = 86_400


class HalfFullDisk(Disk):
    """A disk of which half is used."""

    def used_ratio(self, path: Path) -> float:
        return 0.5


@dataclass
class World:
    """A broker, and what a case asks of it."""

    broker: Broker
    clock: VirtualClock
    connect: Callable[[], Awaitable[Wire]]
    numbers: int = 0

    def fresh(self, prefix: str) -> str:
        """A name that was not there before."""
        self.numbers += 1
        return f"{prefix}{self.numbers}"

    async def code_in(self, seconds: float, post: Callable[[Wire], int]) -> int | None:
        """The code of an answer after so many seconds; None if it is not there yet."""
        wire = await self.connect()
        opaque = post(wire)
        answer = asyncio.ensure_future(wire.answer(opaque))
        await self.clock.run_for(seconds)
        if answer.done():
            return answer.result().code
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        return None


Probe = Callable[[World, Wire], Awaitable[object]]


@dataclass(frozen=True)
class Effect:
    """A value that a key gets, and what a probe finds before and after."""

    value: str
    before: object
    after: object
    probe: Probe
    options: dict[str, Any] = field(default_factory=dict)


# --- probes ---------------------------------------------------------------------------------------
async def log_files_are_deleted(world: World, wire: Wire) -> bool:
    store = world.broker.store
    for _ in range(8):
        assert (await wire.send("T", body=bytes(30_000))).code == 0
    await until(lambda: store.flushed_position == store.max_physical_offset, clock=world.clock)
    began = store.min_physical_offset
    await world.clock.run_for(15)
    return store.min_physical_offset > began


async def level_of_the_log(world: World, wire: Wire) -> int:
    return logging.getLogger("cometmq").level


async def lag_is_told_by_queue(world: World, wire: Wire) -> bool:
    await wire.send("T")
    await wire.call(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        ext={"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "0"},
    )
    assert world.broker.monitor is not None
    return "\ncometmq_consumer_queue_lag_messages{" in await read(world.broker.monitor.url)


async def new_topics_with_series(world: World, wire: Wire) -> int:
    topics = [world.fresh("Series") for _ in range(3)]
    for topic in topics:
        await wire.send(topic)
    assert world.broker.monitor is not None
    text = await read(world.broker.monitor.url)
    lines = [line for line in text.split("\n") if line.startswith("rocketmq_messages_in_total{")]
    return sum(any(f'topic="{topic}"' in line for line in lines) for topic in topics)


async def send_to_a_new_topic(world: World, wire: Wire) -> int:
    return (await wire.send(world.fresh("New"))).code


async def pull_of_a_new_group(world: World, wire: Wire) -> int:
    await wire.send("T")
    return (await wire.pull("T", consumer_group=world.fresh("group"))).code


async def pull(world: World, wire: Wire) -> int:
    await wire.send("T")
    return (await wire.pull("T")).code


async def messages_of_a_pull(world: World, wire: Wire) -> int:
    topic = world.fresh("Pulled")
    for _ in range(3):
        await wire.send(topic, bytes(2_000))
    return len(records(await wire.pull(topic)))


async def pull_that_waits(world: World, wire: Wire) -> bool:
    await wire.send("T")
    end = world.broker.store.queue("T", 0).max_offset()
    header = pull_header("T", queue_offset=end, wait_ms=15_000)

    def post(other: Wire) -> int:
        command = other.command(RequestCode.PULL_MESSAGE, header)
        other.post(command)
        return command.opaque

    return await world.code_in(2, post) is None


async def broker_to_go_on_with(world: World, wire: Wire) -> str:
    await wire.send("T")
    return (await wire.pull("T")).ext_fields["suggestWhichBrokerId"]


async def reply_is_stored(world: World, wire: Wire) -> bool:
    asker = await world.connect()
    await beat(asker)
    opaque = post_reply(wire)
    take(asker, await pushed(asker))
    return (await wire.answer(opaque)).ext_fields["msgId"] != "0"


async def pop_that_waits(world: World, wire: Wire) -> int | None:
    topic = world.fresh("Popped")
    world.broker.topics.put(TopicConfig(topic_name=topic))

    def post(other: Wire) -> int:
        popper = Popper(other, world.clock, world.fresh("poppers"), topic)
        command = popper.command(poll_time=15_000)
        other.post(command)
        return command.opaque

    return await world.code_in(1, post)


async def pops_with_one_in_flight(world: World, wire: Wire) -> int:
    topic = world.fresh("Popped")
    for _ in range(2):
        await wire.send(topic)
    popper = Popper(wire, world.clock, world.fresh("poppers"), topic)
    assert len(await popper.pop(max_msg_nums=1)) == 1
    return len(await popper.pop(max_msg_nums=1))


async def first_of_a_retried_and_a_new_message(world: World, wire: Wire) -> bytes:
    """A pop of one of two messages of one level, of which the first was popped before."""
    topic = world.fresh("Levels")
    kind = {"message.type": "PRIORITY"}
    world.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, attributes=kind))
    popper = Popper(wire, world.clock, world.fresh("poppers"), topic)
    await wire.send(topic, b"retried", properties=f"{PRIORITY}\x011")
    assert len(await popper.pop(invisible_time=1_000)) == 1
    await world.clock.run_for(5)
    await wire.send(topic, b"new", properties=f"{PRIORITY}\x011")
    (first,) = await popper.pop(max_msg_nums=1)
    return first.body


async def first_of_two_levels(world: World, wire: Wire) -> bytes:
    topic = world.fresh("Levels")
    kind = {"message.type": "PRIORITY"}
    world.broker.topics.put(TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2, attributes=kind))
    for level in (0, 1):
        await wire.send(topic, b"%d" % level, properties=f"{PRIORITY}\x01{level}")
    (first,) = await Popper(wire, world.clock, world.fresh("poppers"), topic).pop(max_msg_nums=1)
    return first.body


async def assignments(world: World, wire: Wire) -> list[tuple[str, int]]:
    """Mode and queue of what the first of three members gets of a topic with three queues."""
    world.broker.topics.put(TopicConfig(topic_name="Shared", read_queue_nums=3, write_queue_nums=3))
    for member in ("a", "b", "c"):
        consumers = [
            {
                "groupName": "sharers",
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": [],
            }
        ]
        body = {"clientID": member, "producerDataSet": [], "consumerDataSet": consumers}
        assert (await (await world.connect()).call(RequestCode.HEART_BEAT, body=json.dumps(body).encode())).code == 0
    asked = {
        "topic": "Shared",
        "consumerGroup": "sharers",
        "clientId": "a",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    }
    answer = await wire.call(RequestCode.QUERY_ASSIGNMENT, body=json.dumps(asked).encode())
    found = json.loads(answer.body)["messageQueueAssignments"]
    return sorted((each["mode"], each["messageQueue"]["queueId"]) for each in found)


async def pull_beyond_the_end(world: World, wire: Wire) -> int:
    world.broker.topics.put(TopicConfig(topic_name="T"))
    return (await wire.pull("T", queue_offset=5)).code


async def pull_by_sql(world: World, wire: Wire) -> int:
    await wire.send("T", properties=text_of({"n": "1"}))
    return (await wire.pull("T", subscription="n = 1", expression_type="SQL92")).code


async def retries_by_sql(world: World, wire: Wire) -> list[bytes]:
    await heartbeat(wire, [sql("T", "n = 1")])
    for number in (1, 2):
        await wire.send(RETRIES, b"%d" % number, properties=text_of({"RETRY_TOPIC": "T", "n": str(number)}))
    found = records(await wire.pull(RETRIES, subscription="n = 2", expression_type="SQL92"))
    return sorted({record.body for record in found})


async def filters_after_their_group(world: World, wire: Wire) -> int:
    await heartbeat(wire, [sql("T", "n = 1", version=world.clock.now_ms())])
    await wire.call(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequestHeader("c@1", None, "consumers"))
    world.clock.advance(100)
    world.broker.filters.clean()
    return len(world.broker.filters)


async def checks_after_a_minute(world: World, wire: Wire) -> int:
    await join(wire)
    await send_half(wire, world.fresh("K"))
    world.clock.advance(60)
    await round_of_checks(world.broker)
    return len(await next_checks(wire))


async def checks_come(world: World, wire: Wire) -> bool:
    await join(wire)
    await send_half(wire, world.fresh("K"))
    await world.clock.run_for(5)
    await wire.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return bool(checks(wire))


async def given_up_after_two_rounds(world: World, wire: Wire) -> bool:
    await join(wire)
    await send_half(wire, world.fresh("K"))
    for _ in range(2):
        world.clock.advance(1)
        await round_of_checks(world.broker)
    return bool(stored(world.broker, TRANS_CHECK_MAX_TIME_TOPIC))


async def send_of_a_half(world: World, wire: Wire) -> int:
    return (await wire.send("T", properties=half_properties(world.fresh("K")))).code


async def send_with_a_minute_of_delay(world: World, wire: Wire) -> int:
    return (await wire.send("T", properties=text_of({"TIMER_DELAY_SEC": "60"}))).code


async def recall_of_a_message(world: World, wire: Wire) -> int:
    return (await recall(wire, await send_later(wire, world.fresh("x").encode(), 60))).code


# --- the cases ------------------------------------------------------------------------------------
OLD_FILES = {"file_reserved_time": 1, "delete_when": "24"}
"""Log files whose time is over, and no hour at which they go."""
AT_ALL_HOURS = ";".join(f"{hour:02}" for hour in range(24))
BY_HAND = {"transaction_check_interval": DAY_S * 1_000, "transaction_time_out": 0}
ALL_OF_THREE = [("POP", 0), ("POP", 1), ("POP", 2)]
EFFECTS = {
    "fileReservedTime": Effect("1", False, True, log_files_are_deleted, {"delete_when": AT_ALL_HOURS}),
    "deleteWhen": Effect(AT_ALL_HOURS, False, True, log_files_are_deleted, OLD_FILES),
    "diskMaxUsedSpaceRatio": Effect("40", False, True, log_files_are_deleted, OLD_FILES),
    "logLevel": Effect("ERROR", logging.INFO, logging.ERROR, level_of_the_log),
    "metricsPerQueue": Effect(
        "true", False, True, lag_is_told_by_queue, {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0}
    ),
    "metricsOtelCardinalityLimit": Effect(
        "4",
        3,
        1,
        new_topics_with_series,
        {"metrics_exporter_type": "PROM", "metrics_prom_exporter_port": 0},
    ),
    "autoCreateTopicEnable": Effect("true", 17, 0, send_to_a_new_topic, {"auto_create_topic_enable": False}),
    "autoCreateSubscriptionGroup": Effect("false", 0, 26, pull_of_a_new_group),
    "brokerPermission": Effect("2", 0, 16, pull),
    "storeReplyMessageEnable": Effect("false", True, False, reply_is_stored),
    "longPollingEnable": Effect("false", True, False, pull_that_waits),
    "shortPollingTimeMills": Effect("5000", False, True, pull_that_waits, {"long_polling_enable": False}),
    "maxTransferBytesOnMessageInMemory": Effect("1024", 3, 1, messages_of_a_pull),
    "maxTransferCountOnMessageInMemory": Effect("2", 3, 2, messages_of_a_pull),
    "accessMessageInMemoryMaxRatio": Effect("0", "0", "1", broker_to_go_on_with, {"slave_read_enable": True}),
    "slaveReadEnable": Effect("true", "0", "1", broker_to_go_on_with, {"access_message_in_memory_max_ratio": 0}),
    "maxPopPollingSize": Effect("0", None, 209, pop_that_waits),
    "popPollingSize": Effect("0", None, 209, pop_that_waits),
    "enablePopMessageThreshold": Effect("true", 1, 0, pops_with_one_in_flight, {"pop_inflight_message_threshold": 1}),
    "popInflightMessageThreshold": Effect("1", 1, 0, pops_with_one_in_flight, {"enable_pop_message_threshold": True}),
    "priorityOrderAsc": Effect("false", b"1", b"0", first_of_two_levels),
    "popFromRetryProbabilityForPriority": Effect("100", b"new", b"retried", first_of_a_retried_and_a_new_message),
    "defaultMessageRequestMode": Effect("POP", [("PULL", 0)], [("POP", -1)], assignments),
    "defaultPopShareQueueNum": Effect(
        "1", [("POP", -1)], ALL_OF_THREE[:2], assignments, {"default_message_request_mode": "POP"}
    ),
    "offsetCheckInSlave": Effect("true", 20, 21, pull_beyond_the_end, {"broker_role": "SLAVE", "broker_id": 1}),
    "enablePropertyFilter": Effect("true", 1, 0, pull_by_sql),
    "filterSupportRetry": Effect("true", [b"2"], [b"1"], retries_by_sql, {"enable_property_filter": True}),
    "filterDataCleanTimeSpan": Effect("90000", 1, 0, filters_after_their_group, {"enable_property_filter": True}),
    "transactionTimeOut": Effect(
        f"{DAY_S}000", 1, 0, checks_after_a_minute, {"transaction_check_interval": DAY_S * 1_000}
    ),
    "transactionCheckInterval": Effect("1000", False, True, checks_come, BY_HAND),
    "transactionCheckMax": Effect("1", False, True, given_up_after_two_rounds, BY_HAND),
    "rejectTransactionMessage": Effect("true", 0, 16, send_of_a_half),
    "timerMaxDelaySec": Effect("59", 0, 13, send_with_a_minute_of_delay),
    "recallMessageEnable": Effect("false", 0, 16, recall_of_a_message),
}


def test_every_key_that_changes_at_run_time_has_a_case() -> None:
    assert EFFECTS.keys() == {key for key, found in options_of(BrokerConfig).items() if found.runtime}


@pytest.fixture
async def world(request: pytest.FixtureRequest, tmp_path: Path, connect_to: ConnectTo) -> AsyncIterator[World]:
    """A broker with the options of a case, a day after its files were written."""
    options = {"mapped_file_size_commit_log": 65_536} | EFFECTS[request.param].options
    level = logging.getLogger("cometmq").level
    logging.getLogger("cometmq").setLevel(logging.INFO)
    clock = VirtualClock(time.time_ns() // 1_000_000 + DAY_S * 1_000)
    broker = Broker(small_config(tmp_path, **options), clock=clock, disk=HalfFullDisk())
    await broker.start()
    yield World(broker, clock, lambda: connect_to(broker))
    await broker.stop()
    logging.getLogger("cometmq").setLevel(level)


@pytest.mark.parametrize(("world", "key"), [(key, key) for key in EFFECTS], indirect=["world"], ids=list(EFFECTS))
async def test_a_key_takes_effect_at_run_time(world: World, key: str) -> None:
    effect = EFFECTS[key]
    wire = await world.connect()
    assert await effect.probe(world, wire) == effect.before
    answer = await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=f"{key}={effect.value}".encode())
    assert (answer.code, answer.remark) == (0, None)
    assert await effect.probe(world, wire) == effect.after


async def test_a_producer_makes_topics_once_that_is_switched_on(clock: VirtualClock) -> None:
    async with Cluster(clock=clock, broker_keys={"autoCreateTopicEnable": "false"}) as cluster:
        instances = cluster.client_instance(), cluster.client_instance()
        async with Admin(instance=instances[0]) as admin, Producer("makers", instance=instances[1]) as producer:
            with pytest.raises(CometMQError):
                await clock.run_until(producer.send(Message("Made", b"x")), 60)
            await admin.update_broker_config(cluster.broker(0).address, {"autoCreateTopicEnable": "true"})
            await until(lambda: cluster.has_topic("TBW102"), clock=clock)
            assert (await clock.run_until(producer.send(Message("Made", b"x")), 60)).queue_offset == 0


async def test_a_level_that_outlives_the_log_is_warned_of_when_that_begins(
    start_broker: StartBroker, connect_to: ConnectTo, caplog: pytest.LogCaptureFixture
) -> None:
    wire = await connect_to(await start_broker())
    await wire.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=1")
    assert "delay levels 18 of messageDelayLevel exceed the retention time of log files" in caplog.text
