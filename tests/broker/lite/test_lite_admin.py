"""Questions of tools about lite topics, the removal of idle ones, and what a refused turn leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import GROUP, PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.snapshots import copy_store
from tests.broker.wire import Wire

import cometmq.broker.lite.snapshot_file
from cometmq.broker.controller import Broker
from cometmq.broker.lite.index import numbers_of
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.testing import VirtualClock


@pytest.fixture
async def reader(wire: Wire, clock: VirtualClock) -> Reader:
    await make_parent(wire, attributes="+message.type=LITE,+lite.topic.expiration=30")
    await make_group(wire)
    return Reader(wire, clock)


async def ask(wire: Wire, code: int, **fields: str) -> dict[str, Any]:
    answer = await wire.call(code, ext=fields)
    assert answer.code == 0, answer
    found: dict[str, Any] = json.loads(answer.body)
    return found


async def test_tools_see_lite_topics_clients_and_groups(wire: Wire, reader: Reader, clock: VirtualClock) -> None:
    await reader.sync("a", "b")
    await send(wire, "a", b"a0", b"a1", b"a2")
    await clock.run_for(5)
    await send(wire, "b", b"b0")
    first = await reader.pop(max_msg_num=1)
    await reader.ack(*first)
    now = clock.now_ms()
    info = await ask(wire, RequestCode.GET_BROKER_LITE_INFO)
    assert (info["currentLmqNum"], info["liteSubscriptionCount"], info["orderInfoCount"]) == (2, 2, 0)
    assert (info["topicMeta"], info["groupMeta"]) == ({PARENT: 30}, {PARENT: [GROUP]})
    parent = await ask(wire, RequestCode.GET_PARENT_TOPIC_INFO, topic=PARENT)
    assert parent == {"topic": PARENT, "ttl": 30, "groups": [GROUP], "lmqNum": 2, "liteTopicCount": 2}
    lite = await ask(wire, RequestCode.GET_LITE_TOPIC_INFO, parentTopic=PARENT, liteTopic="a")
    assert lite["topicOffset"] == {"minOffset": 0, "maxOffset": 3, "lastUpdateTimestamp": now - 5_000}
    assert lite["subscriber"] == [{"clientId": "c1", "group": GROUP}]
    client = await ask(
        wire, RequestCode.GET_LITE_CLIENT_INFO, parentTopic=PARENT, group=GROUP, clientId="c1", maxCount="1"
    )
    assert (client["liteTopicCount"], len(client["liteTopicSet"]), client["lastConsumeTime"]) == (2, 1, now)
    group = await ask(wire, RequestCode.GET_LITE_GROUP_INFO, group=GROUP, topK="1")
    assert (group["totalLagCount"], group["earliestUnconsumedTimestamp"]) == (3, now - 5_000)
    assert group["lagCountTopK"] == [{"liteTopic": "a", "lagCount": 2, "earliestUnconsumedTimestamp": now - 5_000}]
    one = await ask(wire, RequestCode.GET_LITE_GROUP_INFO, group=GROUP, liteTopic="a", topK="1")
    assert (one["liteTopicOffsetWrapper"]["brokerOffset"], one["liteTopicOffsetWrapper"]["consumerOffset"]) == (3, 1)
    assert (await wire.call(RequestCode.TRIGGER_LITE_DISPATCH, ext={"group": GROUP})).code == 0


@pytest.mark.parametrize(
    ("code", "fields", "refusal", "words"),
    [
        (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "No"}, ResponseCode.TOPIC_NOT_EXIST, "Topic [No] not exist."),
        (RequestCode.GET_PARENT_TOPIC_INFO, {"topic": "TBW102"}, ResponseCode.INVALID_PARAMETER, "type not match."),
        (
            RequestCode.GET_LITE_GROUP_INFO,
            {"group": "No", "topK": "1"},
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "Group [No] not exist.",
        ),
        (
            RequestCode.TRIGGER_LITE_DISPATCH,
            {"group": "TOOLS_CONSUMER"},
            ResponseCode.INVALID_PARAMETER,
            "Group [TOOLS_CONSUMER] is not a LITE group.",
        ),
    ],
)
@pytest.mark.usefixtures("reader")
async def test_wrong_questions_get_apaches_answers(
    wire: Wire, code: int, fields: dict[str, str], refusal: int, words: str
) -> None:
    answer = await wire.call(code, ext=fields)
    assert (answer.code, (answer.remark or "")[-len(words) :]) == (refusal, words)


async def test_an_idle_lite_topic_is_removed_once_it_is_read(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    wire, clock = reader.wire, reader.clock
    await reader.sync("read", "unread", "kept")
    await send(wire, "read", b"1")
    await reader.ack(*await reader.pop())
    await send(wire, "unread", b"2")
    await send(wire, "unsubscribed", b"3")
    await send(wire, "kept", b"4")
    await reader.sync("kept")
    index = broker.lite.indexes.of(PARENT)
    await clock.run_for(29 * 60)
    assert index.find("read") >= 0
    await clock.run_for(4 * 60)
    left = {index.name(number) for number in numbers_of(index)}
    assert left == {"unread", "unsubscribed", "kept"}
    await send(await connect_to(broker), "read", b"again")
    copy_store(tmp_path / "store", tmp_path / "again")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), clock)
    await again.sync("read", "unread")
    assert sorted(bodies(await again.pop())) == [b"2", b"again"]


async def test_a_deleted_parent_topic_begins_anew(wire: Wire, reader: Reader, broker: Broker) -> None:
    await reader.sync("a")
    await send(wire, "a", b"old", b"older")
    await reader.ack(*await reader.pop(max_msg_num=1))
    assert (await wire.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": PARENT})).code == 0
    assert broker.lite.subscriptions.count == broker.lite.indexes.count == 0
    await make_parent(wire)
    await reader.sync("a")
    await send(wire, "a", b"new")
    (message,) = await reader.pop()
    assert (message.body, message.offset) == (b"new", 0)


async def test_a_delayed_message_reaches_its_lite_topic(wire: Wire, reader: Reader, clock: VirtualClock) -> None:
    await reader.sync("a")
    answer = await wire.send(PARENT, b"late", properties="__LITE_TOPIC\x01a\x02DELAY\x011")
    assert answer.code == 0
    await send(wire, "a", b"soon")
    await clock.run_for(2)
    assert bodies(await reader.pop()) == [b"soon", b"late"]


async def test_a_damaged_snapshot_is_read_from_the_log(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path
) -> None:
    wire, clock = reader.wire, reader.clock
    await reader.sync("a")
    await send(wire, "a", b"0", b"1", b"2")
    await reader.ack(*await reader.pop(max_msg_num=1))
    await broker.lite.save()
    copy_store(tmp_path / "store", tmp_path / "again")
    damaged = tmp_path / "again" / "comet" / "lite.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), clock)
    await again.sync("a")
    assert bodies(await again.pop()) == [b"1", b"2"]


@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_damaged_message_hides_no_others(
    reader: Reader, broker: Broker, start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, is_saved: bool
) -> None:
    wire, clock = reader.wire, reader.clock
    await send(wire, "a", b"0", b"1")
    if is_saved:
        await broker.lite.save()
    await send(wire, "a", b"damaged", b"damaged", b"4")
    copy_store(tmp_path / "store", tmp_path / "again")
    for path in (tmp_path / "again" / "commitlog").iterdir():
        parts = path.read_bytes().split(b"damaged")
        for number in (1, 2):  # the name of its lite topic cannot be read
            parts[number] = parts[number].replace(b"__LITE_TOPIC", b"____________", 1)
        path.write_bytes(b"Damaged".join(parts))
    restarted = await start_broker(store_path_root_dir=str(tmp_path / "again"))
    again = Reader(await connect_to(restarted), clock)
    await again.sync("a")
    found = await again.pop()
    assert bodies(found) == [b"0", b"1", b"4"]
    await again.ack(*found)
    await send(again.wire, "a", b"5")
    assert [(one.body, one.offset) for one in await again.pop()] == [(b"5", 5)]


async def test_a_batch_for_lite_topics_is_refused(wire: Wire, reader: Reader) -> None:
    answer = await wire.send(PARENT, b"", batch=True)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    await reader.sync("a")
    assert await reader.pop() == []


@pytest.mark.parametrize("change", ["+message.type=NORMAL", "-message.type"])
async def test_a_topic_with_lite_topics_stays_lite(wire: Wire, reader: Reader, broker: Broker, change: str) -> None:
    fields = {"topic": PARENT, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6", "defaultTopic": "TBW102"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": change}
    await send(wire, "a", b"a0")
    refused = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "must stay LITE" in (refused.remark or "")
    await reader.sync("a")
    found = await reader.pop()
    assert bodies(found) == [b"a0"]
    await reader.ack(*found)
    await reader.sync()
    body = {"topic": PARENT, "prefix": "", "withUnread": "true"}
    assert (await wire.call(RequestCode.EXPIRE_LITE_TOPICS, ext=body)).code == 0
    assert (await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)).code == 0
    assert not broker.lite.indexes.is_parent(PARENT)


async def test_the_snapshot_waits_for_the_acknowledgements_that_it_contains(
    wire: Wire, reader: Reader, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    wait_kept = broker.store.wait_kept

    async def noted(position: int) -> None:
        kept.append(position)
        await wait_kept(position)

    monkeypatch.setattr(broker.store, "wait_kept", noted)
    monkeypatch.setattr(cometmq.broker.lite.snapshot_file, "_NUMBERS", 1)
    await reader.add(*[f"lite-{number}" for number in range(1_000)], "z")
    await send(wire, "z", b"z0")
    found = await reader.pop()
    saving = asyncio.create_task(broker.lite.save())
    await reader.ack(*found)
    acknowledged = broker.store.max_physical_offset
    assert not saving.done()
    assert not kept
    await saving
    assert kept[-1] >= acknowledged
