"""Answers of Apache's broker 4.9.7 to administrators, compared with ours: code, remark, fields, form of the body.

``exchanges.jsonl`` holds real requests with the real answers. The broker asked has the topics,
groups and clients that they name; values that depend on what was sent before are compared by their form.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.wire import Connect, Wire
from tests.helpers.waiting import until

from cometmq import fastjson
from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
    TopicConfig,
    encode_body,
)
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import FLAG_RESPONSE, RemotingCommand

EXCHANGES = [
    json.loads(line) for line in (Path(__file__).parent / "exchanges.jsonl").read_text(encoding="utf-8").splitlines()
]
CLIENT_ID = "127.0.0.1@WireadmAdmC"
RUNNING_INFO = b'{"jstack":null,"mqTable":{},"properties":{},"statusTable":{},"subscriptionSet":[]}'
DIRECT_RESULT = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":0}'
MAPS_BY_NAME = frozenset(
    {
        "topicConfigTable",
        "subscriptionGroupTable",
        "subscriptionTable",
        "offsetTable",
        "data",
        "consumerTable",
        "messageQueueTable",
        "correctionOffsets",
    }
)
"""Fields that hold a map by names or queues, of which one entry stands for all."""
WITHOUT_REMARK = {"admin-api:getConsumeStatus-offline"}
"""Any words will do where Apache's remark is a Java exception."""
STATE_DEPENDENT = {
    "probe:correction",  # Apache deletes the offsets of the groups that it was told to leave out
    "admin-api:resetOffsetNew",  # asked of a group that had lost its offsets
}

MORE_RUNTIME_INFORMATION = {
    "clockBehindStoreMs",
    "cometmqVersion",
    "currentTimestamp",
    "getTransferredTps",
    "missingQueueEntries",
    "openTransactions",
    "timerCongestNum",
    "timerDequeueTps",
    "timerEnqueueTps",
    "timerOffsetBehind",
    "timerReadBehind",
    "transactionChecksSent",
    "transactionsCommitted",
    "transactionsGivenUp",
    "transactionsRolledBack",
}
"""Entries that Apache's runtime information does not have; tools show what they find."""
OPEN_TRANSACTION = {"oldestOpenTransactionAgeMs", "oldestOpenTransactionChecks", "oldestOpenTransactionGroup"}
"""There while a transaction is open."""


class Member:
    """A consumer that answers what brokers push, as a Java client does."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.asked: list[RemotingCommand] = []
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        bodies = {307: RUNNING_INFO, 309: DIRECT_RESULT, 221: b'{"consumerTable":{},"messageQueueTable":{}}'}
        while True:
            while self.wire.pushed:
                command = self.wire.pushed.pop(0)
                self.asked.append(command)
                if command.code in bodies:
                    command_answer = RemotingCommand(
                        code=0,
                        opaque=command.opaque,
                        flag=FLAG_RESPONSE,
                        remark="not set any response code",
                        body=bodies[command.code],
                    )
                    self.wire.post(command_answer)
            await self.wire.read(60)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def heartbeat() -> bytes:
    """A Java client with one consumer group and one producer group."""
    subscriptions = [SubscriptionData(topic="WireAdm"), SubscriptionData(topic="%RETRY%WireAdmC")]
    return encode_body(
        HeartbeatData(
            client_id=CLIENT_ID,
            consumer_data_set=[ConsumerData(group_name="WireAdmC", subscription_data_set=subscriptions)],
            producer_data_set=[ProducerData(group_name="WireAdmP"), ProducerData(group_name="CLIENT_INNER_PRODUCER")],
        )
    )


@pytest.fixture
async def member(broker: Broker, connect: Connect, wire: Wire) -> AsyncIterator[Member]:
    """The topics, messages, offsets and clients that the exchanges name."""
    topics = {
        "WireAdm": 4,
        "WireProbed": 2,
        "WireMade": 3,
        "WirePushed": 2,
        "RMQ_SYS_TRANS_HALF_TOPIC": 1,
    }
    for name, queues in topics.items():
        broker.topics.put(TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues))
    for queue_id in range(4):
        for _ in range(3):
            assert (await wire.send("WireAdm", queue_id=queue_id)).code == 0
    assert (await wire.send("WireProbed")).code == 0
    for queue_id in range(4):
        broker.offsets.commit("WireAdmC", "WireAdm", queue_id, 2)
        broker.offsets.commit("WireOff", "WireAdm", queue_id, 1)
    broker.offsets.commit("WireCSql", "WirePushed", 0, 0)
    broker.offsets.set_offset("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
    broker.stats.put("RMQ_SYS_TRANS_HALF_TOPIC", 1, 1)
    client = await connect()
    consumer = client.command(RequestCode.HEART_BEAT, body=heartbeat())
    consumer.language = "JAVA"
    assert (await client.ask(consumer)).code == 0
    serving = Member(client)
    yield serving
    await serving.stop()


def form(value: Any, field: str = "") -> Any:
    """The form of a body: names of fields and kinds of values; lists and maps by their first entry."""
    if isinstance(value, fastjson.ObjectKeyMap):
        return [(form(key), form(item)) for key, item in value[:1]]
    if isinstance(value, dict):
        if field in MAPS_BY_NAME or all(key.isdigit() for key in value):
            return [form(item) for item in list(value.values())[:1]]
        if field == "table":
            return {key for key in value if not key.startswith(("scheduleMessageOffset_", "commitLogDiskRatio_"))}
        return {key: form(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [form(item) for item in value[:1]] if field != "consumeStatsList" else "list"
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def _name(exchange: dict[str, Any]) -> str:
    return f"{exchange['scenario']}-{exchange['request']['header']['code']}-{exchange['answer']['header']['code']}"


@pytest.mark.parametrize("exchange", EXCHANGES, ids=_name)
async def test_answers_as_apache_does(broker: Broker, wire: Wire, member: Member, exchange: dict[str, Any]) -> None:
    sent, expected = exchange["request"], exchange["answer"]
    request = RemotingCommand(
        code=sent["header"]["code"],
        opaque=12345,
        language="JAVA",
        version=sent["header"]["version"],
        ext_fields=sent["header"].get("extFields") or {},
        body=(sent.get("body_text") or "").encode(),
        serialize_type=1 if sent["serialize"] == "ROCKETMQ" else 0,
    )
    if request.code == 309:
        stored = await wire.send("WireAdm", queue_id=0)
        request.ext_fields["msgId"] = stored.ext_fields["msgId"]
    answer = await wire.ask(request)
    if exchange["scenario"] in STATE_DEPENDENT:
        assert answer.remark is None or "not online" in answer.remark
        return
    assert answer.code == expected["header"]["code"], answer.remark
    if exchange["scenario"] in WITHOUT_REMARK:
        assert answer.remark
    else:
        assert answer.remark == expected["header"].get("remark")
    assert answer.ext_fields.keys() == (expected["header"].get("extFields") or {}).keys()
    text = expected.get("body_text", "")
    if request.code == 26:
        keys = {line.partition("=")[0] for line in answer.body.decode().splitlines()}
        apache = {line.partition("=")[0] for line in text.splitlines()}
        assert keys & apache >= {"brokerName", "brokerIP1", "flushDiskType", "fileReservedTime", "listenPort"}
    elif request.code == 307 and text:
        assert answer.body == RUNNING_INFO
    elif request.code == 28:
        shown, apache = (form(fastjson.loads(body))["table"] for body in (answer.body, text))
        assert shown - apache - OPEN_TRANSACTION == MORE_RUNTIME_INFORMATION
        assert apache <= shown
    elif text:
        assert form(fastjson.loads(answer.body)) == form(fastjson.loads(text))
        if request.code == 21:
            table = fastjson.loads(answer.body)["topicConfigTable"]
            apache = set(fastjson.loads(text)["topicConfigTable"])
            assert {name for name in table if name.startswith(("rmq_", "RMQ_", "SCHEDULE"))} - apache <= {
                "rmq_sys_wheel_timer",
                "RMQ_SYS_TRANS_HALF_TOPIC",
            }
    else:
        assert answer.body == b""


async def test_the_client_gets_what_the_administrator_asks(broker: Broker, wire: Wire, member: Member) -> None:
    stored = await wire.send("WireAdm", queue_id=1, body=b"look at me")
    fields = {"consumerGroup": "WireAdmC", "clientId": CLIENT_ID, "msgId": stored.ext_fields["msgId"]}
    answer = await wire.call(RequestCode.CONSUME_MESSAGE_DIRECTLY, ext=fields)
    assert (answer.code, answer.body) == (0, DIRECT_RESULT)
    asked = next(command for command in member.asked if command.code == 309)
    assert asked.ext_fields["brokerName"] == "broker-a"
    assert b"look at me" in asked.body


@pytest.mark.parametrize(
    ("force", "timestamp", "expected"),
    [("true", -1, 3), ("false", -1, 2), ("true", 0, 0), ("false", 0, 0), ("true", 1 << 62, 3)],
)
async def test_members_are_told_their_new_offsets(
    wire: Wire, member: Member, force: str, timestamp: int, expected: int
) -> None:
    fields = {"topic": "WireAdm", "group": "WireAdmC", "timestamp": str(timestamp), "isForce": force}
    answer = await wire.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=fields)
    assert answer.code == 0
    offsets = {key["queueId"]: offset for key, offset in fastjson.loads(answer.body)["offsetTable"]}
    assert offsets == dict.fromkeys(range(4), expected)
    await until(lambda: any(command.code == 220 for command in member.asked))
    pushed = next(command for command in member.asked if command.code == 220)
    assert pushed.is_oneway
    assert fastjson.loads(pushed.body) == fastjson.loads(answer.body)
    assert pushed.ext_fields["topic"] == "WireAdm"
