"""Requests about lite topics over a raw connection, and what tests read from the answers."""

from __future__ import annotations

from typing import Any

from tests.broker.wire import Wire, records

from cometmq.broker.controller import Broker
from cometmq.message.pop_info import ORDER_REVIVE_QUEUE, ReceiptHandle
from cometmq.message.properties import INNER_MULTI_QUEUE_OFFSET, LITE_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.bodies import SubscriptionGroupConfig, encode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.lite.bodies import (
    LiteSubscriptionAction,
    LiteSubscriptionCtlRequestBody,
    LiteSubscriptionDTO,
    OffsetOption,
)
from cometmq.remoting.lite.headers import PopLiteMessageRequestHeader
from cometmq.remoting.pop_headers import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader
from cometmq.testing import settle

PARENT = "Sessions"
GROUP = "readers"


async def make_parent(wire: Wire, topic: str = PARENT, attributes: str = "+message.type=LITE") -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": attributes,
    }
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields)
    assert answer.code == 0, answer


async def make_group(wire: Wire, group: str = GROUP, topic: str = PARENT, **attributes: str) -> None:
    """Create a group that reads a parent topic; underscores in names of attributes stand for dots."""
    change = {"+lite.bind.topic": topic}
    change |= {"+lite.sub." + name.replace("_", "."): value for name, value in attributes.items()}
    config = SubscriptionGroupConfig(group_name=group, attributes=change, retry_max_times=2)
    answer = await wire.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(config))
    assert answer.code == 0, answer


async def send(wire: Wire, lite: str, *bodies: bytes, topic: str = PARENT, **fields: Any) -> None:
    for body in bodies:
        answer = await wire.send(topic, body, properties=f"KEYS\x01k\x02{LITE_TOPIC}\x01{lite}", **fields)
        assert answer.code == 0, answer


async def expire(broker: Broker) -> None:
    """Look for idle lite topics now."""
    (work,) = [work for name, _, work in broker.lite.periodic_work() if name == "expire lite topics"]
    work()
    await settle()


class Got:
    """A message of a lite topic with its handle."""

    def __init__(self, record: StoredRecord, times: int, fields: dict[str, str]) -> None:
        self.record = record
        self.times = times
        self.body = record.body
        self.lite = record.properties[LITE_TOPIC]
        self.offset = int(record.properties[INNER_MULTI_QUEUE_OFFSET])
        self.handle = ReceiptHandle(
            *(self.offset, int(fields["popTime"]), int(fields["invisibleTime"]), ORDER_REVIVE_QUEUE, "0"),
            *("broker-a", 0, self.offset),
        )

    def __repr__(self) -> str:
        return f"{self.lite}:{self.body!r}"


def got(answer: RemotingCommand) -> list[Got]:
    if answer.code:
        assert answer.code == 210, answer
        return []
    found = records(answer)
    counts = answer.ext_fields["orderCountInfo"].split(";")
    assert answer.ext_fields["reviveQid"] == "999"
    return [Got(record, int(times), answer.ext_fields) for record, times in zip(found, counts, strict=True)]


class Reader:
    """A client of one group on one connection."""

    def __init__(self, wire: Wire, clock: Any, client_id: str = "c1", group: str = GROUP, topic: str = PARENT) -> None:
        self.wire = wire
        self.clock = clock
        self.client_id = client_id
        self.group = group
        self.topic = topic
        self.version = 0

    async def control(self, action: str, *lites: str, **fields: Any) -> RemotingCommand:
        self.version += 1
        values: dict[str, Any] = {
            "client_id": self.client_id,
            "group": self.group,
            "topic": self.topic,
            "lite_topic_set": list(lites),
            "version": self.version,
        }
        change = LiteSubscriptionDTO(action=LiteSubscriptionAction[action], **(values | fields))
        body = encode_body(LiteSubscriptionCtlRequestBody(subscription_set=[change]))
        return await self.wire.call(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)

    async def sync(self, *lites: str) -> None:
        answer = await self.control("COMPLETE_ADD", *lites)
        assert answer.code == 0, answer

    async def add(self, *lites: str, option: OffsetOption | None = None) -> None:
        answer = await self.control("PARTIAL_ADD", *lites, offset_option=option)
        assert answer.code == 0, answer

    def command(self, **fields: Any) -> RemotingCommand:
        values: dict[str, Any] = {
            "client_id": self.client_id,
            "consumer_group": self.group,
            "topic": self.topic,
            "max_msg_num": 32,
            "invisible_time": 60_000,
            "poll_time": 0,
            "born_time": self.clock.now_ms(),
        }
        return self.wire.command(RequestCode.POP_LITE_MESSAGE, PopLiteMessageRequestHeader(**(values | fields)))

    async def pop(self, **fields: Any) -> list[Got]:
        return got(await self.wire.ask(self.command(**fields)))

    async def ack(self, *messages: Got, code: int = RequestCode.ACK_MESSAGE) -> None:
        for message in messages:
            header = AckMessageRequestHeader(
                consumer_group=self.group,
                topic=self.topic,
                queue_id=0,
                extra_info=message.handle.encode(),
                offset=message.offset,
                lite_topic=message.lite,
            )
            answer = await self.wire.call(code, header)
            assert answer.code == 0, answer

    async def change(self, message: Got, invisible_ms: int, *, suspend: bool = False) -> None:
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=0,
            extra_info=message.handle.encode(),
            offset=message.offset,
            invisible_time=invisible_ms,
            lite_topic=message.lite,
            suspend=suspend,
        )
        answer = await self.wire.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer
        assert int(answer.ext_fields["popTime"]) == message.handle.pop_time


def bodies(messages: list[Got]) -> list[bytes]:
    return [message.body for message in messages]
