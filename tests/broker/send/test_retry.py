"""Failed messages that are handed back: retried after a delay, and dead letters in the end."""

from __future__ import annotations

import dataclasses
import errno
import random
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker, small_config
from tests.broker.disks import FailingDisk
from tests.broker.send.retrying import hand_back, sent
from tests.broker.wire import Wire
from tests.helpers.contents import bodies, stored
from tests.helpers.waiting import until

from cometmq.broker.controller import Broker
from cometmq.broker.statistics.stats import SNDBCK_PUT_NUMS
from cometmq.message.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import ConsumerSendMsgBackRequestHeader
from cometmq.testing import VirtualClock

OLD_VERSION = 120


async def test_a_failed_message_waits_and_comes_to_the_retry_topic(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    record = await sent(broker, wire, sys_flag=1, flag=5, properties="TAGS\x01a\x02UNIQ_KEY\x01u")
    assert (await hand_back(wire, record.physical_offset)).code == ResponseCode.SUCCESS
    (parked,) = stored(broker, SCHEDULE_TOPIC, 2)
    assert parked.properties == {
        **record.properties,
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": record.msg_id,
        "WAIT": "false",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%workers",
        "REAL_QID": "0",
    }
    for name in ("body", "flag", "sys_flag", "born_timestamp", "born_host"):
        assert getattr(parked, name) == getattr(record, name), name
    assert parked.reconsume_times == 1
    await clock.run_for(10)
    (retried,) = stored(broker, "%RETRY%workers")
    assert retried.properties == parked.properties
    await hand_back(wire, retried.physical_offset)
    (again,) = stored(broker, SCHEDULE_TOPIC, 3)
    assert again.reconsume_times == 2
    assert again.properties == parked.properties | {"DELAY": "4"}, "where it came from at first stays"
    assert broker.stats.item(SNDBCK_PUT_NUMS, "T@workers").value == 2


async def test_after_all_retries_it_is_a_dead_letter(broker: Broker, wire: Wire, clock: VirtualClock) -> None:
    offset = (await sent(broker, wire)).physical_offset
    for attempt in range(16):
        await hand_back(wire, offset)
        await clock.skip(7200)
        record = stored(broker, "%RETRY%workers")[-1]
        assert record.reconsume_times == attempt + 1
        offset = record.physical_offset
    await hand_back(wire, offset)
    (dead,) = stored(broker, "%DLQ%workers")
    assert (dead.reconsume_times, dead.properties["DELAY"], dead.properties["RETRY_TOPIC"]) == (17, "0", "T")
    levels = [level for level in range(1, 19) for _ in stored(broker, SCHEDULE_TOPIC, level - 1)]
    assert levels == list(range(3, 19)), "10 s, 30 s, 1 min … 2 h"
    topic = broker.topics.get("%DLQ%workers")
    assert topic is not None
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


@pytest.mark.parametrize(
    ("level", "parked"),
    [
        *((level, level) for level in (1, 2, 17, 18)),
        *((level, 18) for level in (19, 99, 2**31 - 1)),
        *((level, None) for level in (-1, -2, -(2**31))),
        (0, 3),
    ],
)
async def test_the_consumer_may_choose_the_delay(broker: Broker, wire: Wire, level: int, parked: int | None) -> None:
    record = await sent(broker, wire)
    assert (await hand_back(wire, record.physical_offset, delay_level=level)).code == ResponseCode.SUCCESS
    assert len(bodies(broker, "%DLQ%workers")) == (parked is None)
    assert parked is None or len(bodies(broker, SCHEDULE_TOPIC, parked - 1)) == 1


@pytest.mark.parametrize(
    ("failed", "level", "most", "parked"),
    [
        (-1, 0, 16, 2),
        (1, 0, None, 4),
        (1, 5, None, 5),
        (1, 99, 2, 18),
        (1, -1, 100, None),
        (2, 5, 2, None),
        (15, 0, None, 18),
        (16, 5, None, None),
        (16, 0, 17, 18),
        (30, 0, 100, 18),
        (30, 1, 2**31 - 1, 1),
        (30, 0, -1, None),
        (0, 99, 0, None),
    ],
)
async def test_a_message_that_failed_before_waits_as_long_as_with_apache(
    broker: Broker, wire: Wire, failed: int, level: int, most: int | None, parked: int | None
) -> None:
    record = await sent(broker, wire, reconsume_times=failed)
    answer = await hand_back(wire, record.physical_offset, delay_level=level, max_reconsume_times=most)
    assert answer.code == ResponseCode.SUCCESS
    (again,) = stored(broker, "%DLQ%workers") if parked is None else stored(broker, SCHEDULE_TOPIC, parked - 1)
    assert again.reconsume_times == failed + 1
    assert again.properties["DELAY"] == str(parked or 0)
    assert parked is None or again.properties["REAL_TOPIC"] == "%RETRY%workers"


@pytest.mark.parametrize("level", ["2147483648", "-2147483649", "x", "", "1.5", None])
async def test_a_delay_that_is_no_number_stores_nothing(broker: Broker, wire: Wire, level: str | None) -> None:
    record = await sent(broker, wire)
    end = broker.store.max_physical_offset
    fields = {"offset": str(record.physical_offset), "group": "workers"} | (
        {} if level is None else {"delayLevel": level}
    )
    answer = await wire.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields)
    assert (answer.code, "delayLevel" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.store.max_physical_offset == end


@pytest.mark.parametrize(
    ("of_group", "of_client", "version", "dead"),
    [(0, None, 407, True), (0, 1, 407, False), (5, 0, 407, True), (5, 0, OLD_VERSION, False), (16, None, 407, False)],
)
async def test_how_often_it_may_fail_says_the_client_else_the_group(
    broker: Broker, wire: Wire, of_group: int, of_client: int | None, version: int, dead: bool
) -> None:
    broker.groups.put(SubscriptionGroupConfig(group_name="workers", retry_max_times=of_group))
    record = await sent(broker, wire)
    await hand_back(wire, record.physical_offset, max_reconsume_times=of_client, version=version)
    assert len(bodies(broker, "%DLQ%workers")) == dead


async def test_retries_spread_over_the_groups_retry_queues(
    broker: Broker, wire: Wire, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.groups.put(SubscriptionGroupConfig(group_name="workers", retry_queue_nums=3))
    monkeypatch.setattr(random, "randrange", lambda count: count - 1)
    record = await sent(broker, wire)
    await hand_back(wire, record.physical_offset, unit_mode=True)
    await clock.run_for(10)
    assert bodies(broker, "%RETRY%workers", 2) == [b"body"]
    topic = broker.topics.get("%RETRY%workers")
    assert topic is not None
    assert (topic.read_queue_nums, topic.topic_sys_flag) == (3, 2)


# --- refusals -------------------------------------------------------------------------------------
async def test_a_message_that_does_not_exist(broker: Broker, wire: Wire) -> None:
    record = await sent(broker, wire)
    for offset in (record.physical_offset + 1, 1 << 40, -1):
        answer = await hand_back(wire, offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {offset}",
        )


async def test_a_group_without_retries_drops_it(broker: Broker, wire: Wire) -> None:
    broker.groups.put(SubscriptionGroupConfig(group_name="workers", retry_queue_nums=0))
    record = await sent(broker, wire)
    end = broker.store.max_physical_offset
    assert (await hand_back(wire, record.physical_offset)).code == ResponseCode.SUCCESS
    assert broker.store.max_physical_offset == end


async def test_unknown_groups(start_broker: StartBroker, connect_to: ConnectTo) -> None:
    broker = await start_broker(auto_create_subscription_group=False)
    wire = await connect_to(broker)
    record = await sent(broker, wire)
    answer = await hand_back(wire, record.physical_offset)
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "subscription group not exist, workers",
    )
    broker.live.replace(dataclasses.replace(broker.config, auto_create_subscription_group=True))
    assert (await hand_back(wire, record.physical_offset, group="../x")).code == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    )
    assert (await hand_back(wire, record.physical_offset)).code == ResponseCode.SUCCESS
    assert broker.groups.get("workers") is not None


async def test_without_permission(broker: Broker, wire: Wire) -> None:
    record = await sent(broker, wire)
    broker.topics.put(TopicConfig(topic_name="%RETRY%workers", perm=4))
    answer = await hand_back(wire, record.physical_offset)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the topic[%RETRY%workers] sending message is forbidden",
    )
    broker.live.replace(dataclasses.replace(broker.config, broker_permission=4))
    answer = await hand_back(wire, record.physical_offset)
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden",
    )


async def test_what_cannot_be_stored_is_not_acknowledged(
    tmp_path: Path, clock: VirtualClock, connect_to: ConnectTo
) -> None:
    disk = FailingDisk()
    broker = Broker(small_config(tmp_path), clock=clock, disk=disk)
    await broker.start()
    try:
        wire = await connect_to(broker)
        record = await sent(broker, wire)
        disk.write_error = errno.ENOSPC
        assert (await hand_back(wire, record.physical_offset)).code != ResponseCode.SUCCESS
        disk.write_error = None
        assert bodies(broker, SCHEDULE_TOPIC, 2) == []
        assert (await hand_back(wire, record.physical_offset)).code == ResponseCode.SUCCESS
    finally:
        await broker.stop()


async def test_with_sync_flush_it_is_acknowledged_once_flushed(
    start_broker: StartBroker, connect_to: ConnectTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await start_broker(flush_disk_type="SYNC_FLUSH")
    wire = await connect_to(broker)
    record = await sent(broker, wire)
    flushes: list[Any] = []
    monkeypatch.setattr(broker.store, "when_flushed", lambda _position, callback: flushes.append(callback))
    command = wire.command(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        ConsumerSendMsgBackRequestHeader(offset=record.physical_offset, group="workers", delay_level=0),
    )
    wire.post(command)
    await until(lambda: bool(flushes))
    assert command.opaque not in wire.answers
    flushes[0](None)
    assert (await wire.answer(command.opaque)).code == ResponseCode.SUCCESS


# --- a consumer's own sends to its retry topic ----------------------------------------------------
async def test_a_consumers_own_send_is_retried_or_a_dead_letter(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    values: dict[str, Any] = {"properties": "RETRY_TOPIC\x01T\x02DELAY\x013", "max_reconsume_times": 2}
    assert (await wire.send("%RETRY%workers", b"again", reconsume_times=1, **values)).code == ResponseCode.SUCCESS
    answer = await wire.send("%RETRY%workers", b"dead", reconsume_times=2, **values)
    assert (answer.code, answer.ext_fields["queueId"]) == (ResponseCode.SUCCESS, "0")
    assert bodies(broker, "%DLQ%workers") == [], "as in Apache's broker, the DELAY of the send counts"
    await clock.run_for(10)
    assert bodies(broker, "%RETRY%workers") == [b"again"]
    assert bodies(broker, "%DLQ%workers") == [b"dead"]
    await wire.send("%RETRY%workers", b"at once", reconsume_times=16, properties="")
    assert bodies(broker, "%DLQ%workers") == [b"dead", b"at once"]


async def test_a_retried_message_of_a_transaction_is_no_half_message(broker: Broker, wire: Wire) -> None:
    properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02RETRY_TOPIC\x01T"
    answer = await wire.send("%RETRY%workers", b"of ali-ons", properties=properties, reconsume_times=1)
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(broker, "%RETRY%workers") == [b"of ali-ons"]
    assert bodies(broker, TRANS_HALF_TOPIC) == []
