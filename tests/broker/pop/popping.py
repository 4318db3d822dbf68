"""Requests of POP over a raw connection, and what tests read from the answers."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.broker.wire import Wire, records

from cometmq.message.pop_info import (
    ReceiptHandle,
    parse_handle,
    read_offset_info,
    real_topic,
)
from cometmq.message.properties import POP_CK
from cometmq.message.record import StoredRecord
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    PopMessageRequestHeader,
)

GROUP = "poppers"
TOPIC = "Popped"


class Got:
    """A popped message with its handle."""

    def __init__(self, record: StoredRecord, handle: ReceiptHandle, group: str) -> None:
        self.record = record
        self.handle = handle
        self.group = group

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def times(self) -> int:
        """How often it was handed out before."""
        return self.record.reconsume_times

    def __repr__(self) -> str:
        return f"{self.body!r} {self.handle.encode()}"


def pop_command(wire: Wire, now_ms: int, topic: str = TOPIC, **fields: Any) -> RemotingCommand:
    values: dict[str, Any] = {
        "consumer_group": GROUP,
        "topic": topic,
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": 60_000,
        "poll_time": 0,
        "born_time": now_ms,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
        "order": False,
    }
    return wire.command(RequestCode.POP_MESSAGE, PopMessageRequestHeader(**(values | fields)))


def got(answer: RemotingCommand, group: str = GROUP, topic: str = TOPIC) -> list[Got]:
    """The messages of an answer, each with the handle that Java's client makes."""
    if answer.code:
        assert answer.code == 210, answer
        return []
    fields = answer.ext_fields
    infos = read_offset_info(fields["msgOffsetInfo"])
    starts = {
        (kind, int(queue)): int(start)
        for kind, queue, start in (part.split(" ") for part in fields["startOffsetInfo"].split(";"))
    }
    found = []
    for record in records(answer):
        kept = record.properties.get(POP_CK)
        if kept is not None:
            handle = parse_handle(kept)
        else:
            (kind,) = [
                kind
                for (kind, queue), offsets in infos.items()
                if kind == "0" and queue == record.queue_id and record.queue_offset in offsets
            ]
            handle = ReceiptHandle(
                starts[kind, record.queue_id],
                int(fields["popTime"]),
                int(fields["invisibleTime"]),
                int(fields["reviveQid"]),
                kind,
                "broker-a",
                record.queue_id,
                record.queue_offset,
            )
        found.append(Got(record, handle, group))
    return found


class Popper:
    """A consumer of one group on one connection."""

    def __init__(self, wire: Wire, clock: Any, group: str = GROUP, topic: str = TOPIC) -> None:
        self.wire = wire
        self.clock = clock
        self.group = group
        self.topic = topic

    async def pop(self, **fields: Any) -> list[Got]:
        return got(await self.answer(**fields), self.group, self.topic)

    async def answer(self, **fields: Any) -> RemotingCommand:
        return await self.wire.ask(self.command(**fields))

    def command(self, **fields: Any) -> RemotingCommand:
        own = {"topic": self.topic, "consumer_group": self.group}
        return pop_command(self.wire, self.clock.now_ms(), **(own | fields))

    async def ack(self, message: Got, handle: ReceiptHandle | None = None) -> RemotingCommand:
        handle = handle or message.handle
        header = AckMessageRequestHeader(
            consumer_group=self.group,
            topic=real_topic(self.topic, self.group, handle.topic_type),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
        )
        return await self.wire.call(RequestCode.ACK_MESSAGE, header)

    async def change(self, message: Got, invisible_ms: int, handle: ReceiptHandle | None = None) -> ReceiptHandle:
        """Change the time of a message; return the new handle."""
        handle = handle or message.handle
        header = ChangeInvisibleTimeRequestHeader(
            consumer_group=self.group,
            topic=real_topic(self.topic, self.group, handle.topic_type),
            queue_id=handle.queue_id,
            extra_info=handle.encode(),
            offset=handle.queue_offset,
            invisible_time=invisible_ms,
        )
        answer = await self.wire.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        assert answer.code == 0, answer
        return handle._replace(
            start_offset=handle.queue_offset,
            pop_time=int(answer.ext_fields["popTime"]),
            invisible_time=int(answer.ext_fields["invisibleTime"]),
            revive_queue=int(answer.ext_fields["reviveQid"]),
        )

    async def batch_ack(self, messages: list[Got]) -> RemotingCommand:
        acks: dict[tuple[Any, ...], list[int]] = {}
        for message in messages:
            handle = message.handle
            key = (handle.topic_type, handle.queue_id, handle.pop_time)
            acks.setdefault(key, []).append(handle.queue_offset)
        body = {
            "brokerName": "broker-a",
            "acks": [
                {
                    "c": self.group,
                    "t": self.topic,
                    "r": kind,
                    "so": min(offsets),
                    "q": queue_id,
                    "rq": 0,
                    "pt": pop_time,
                    "it": 60_000,
                    "b": base64.b64encode(
                        sum(1 << offset - min(offsets) for offset in offsets).to_bytes(8, "little").rstrip(b"\0")
                    ).decode(),
                }
                for (kind, queue_id, pop_time), offsets in acks.items()
            ],
        }
        return await self.wire.call(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(body).encode())
