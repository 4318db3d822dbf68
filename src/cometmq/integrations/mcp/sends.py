"""Tools that send messages, each as a plan: new ones, copies for a group, and dead letters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin import Admin
from cometmq.client.admin.members import check_group_exists, members_of
from cometmq.client.admin.topic_settings import MESSAGE_TYPES
from cometmq.client.dead_letters import Ledger, Outcome, Selection, origin_topic, read_dead_letters, resend, send_copy
from cometmq.client.diagnosis.checks import Unavailable, tried
from cometmq.client.errors import RouteNotFoundError
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometMQError
from cometmq.integrations.mcp.catalogue import (
    ArgumentError,
    Call,
    Confirmed,
    Period,
    Text,
    Tool,
    Whole,
    given,
)
from cometmq.integrations.mcp.options import MAX_RESENT, MAX_ROWS, MAX_SEND_CHARS
from cometmq.integrations.mcp.plans import Plan
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.message import Message, MessageExt
from cometmq.message.names import check_group, dlq_topic, is_system_topic, retry_topic
from cometmq.message.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, SHARDING_KEY, UNIQ_KEY
from cometmq.quantity import quantity

_PRODUCER_GROUP: Final = "cometmq-mcp"


class Sending(Confirmed, kw_only=True):
    """A new message."""

    topic_name: Text = msgspec.field(name="topicName")
    body: Annotated[str, Meta(min_length=1, max_length=MAX_SEND_CHARS)]
    message_group: Annotated[Text | UnsetType, Meta(description="Required for FIFO topics.")] = msgspec.field(
        default=UNSET, name="messageGroup"
    )
    delivery_timestamp: Annotated[Whole | UnsetType, Meta(description="Epoch ms; required for DELAY topics.")] = (
        msgspec.field(default=UNSET, name="deliveryTimestamp")
    )
    tag: Text | UnsetType = UNSET
    key: Text | UnsetType = UNSET
    properties: Annotated[
        Annotated[str, Meta(max_length=8192)] | UnsetType,
        Meta(description='A JSON object of texts, e.g. {"key1": "value1"}.'),
    ] = UNSET


class Redelivery(Confirmed, kw_only=True):
    """A stored message, and the group that gets a copy."""

    group_name: Text = msgspec.field(name="groupName")
    msg_id: Text = msgspec.field(name="msgId")
    source_topic: Annotated[Text | UnsetType, Meta(description="Required if msgId is the client's id.")] = (
        msgspec.field(default=UNSET, name="sourceTopic")
    )
    target_topic: Annotated[Text | UnsetType, Meta(description="Send to all groups of this topic instead.")] = (
        msgspec.field(default=UNSET, name="targetTopic")
    )


class DeadLetterRedelivery(Confirmed, kw_only=True):
    """The dead letters to send again."""

    group_name: Text = msgspec.field(name="groupName")
    time: Period = msgspec.field(default_factory=Period)


async def send(call: Call, parameters: Sending) -> Plan:
    """Plan the send of a message."""
    admin, topic = call.admin, parameters.topic_name
    if is_system_topic(topic):
        raise ArgumentError(f"{topic} belongs to the servers", next_step="choose another topic")
    await admin.topic_route(topic)
    kind = await _type(admin, topic)
    _check_type(kind, parameters)
    message = _message(parameters)

    async def run() -> dict[str, Any]:
        async with Producer(_PRODUCER_GROUP, instance=admin.instance) as producer:
            result = await producer.send(message)
        sent = call.clock.now_ms()
        return {"msgId": result.msg_id, "offsetMsgId": result.offset_msg_id, "sendTime": sent}

    after = {"topic": topic, "bodyBytes": len(message.body), "tag": message.tags, "keys": list(message.keys)}
    return Plan(
        f"Send one message of {quantity(len(message.body), 'byte')} to topic {topic}.",
        [f"every consumer group of topic {topic} receives it"],
        {"topicType": kind},
        after,
        run,
    )


async def _type(admin: Admin, topic: str) -> str:
    types = await tried(admin.topic_types(topic))
    if isinstance(types, Unavailable):
        return MESSAGE_TYPES[0]  # this account may not ask, or the broker has no types
    return next(iter(types.values()), MESSAGE_TYPES[0])


def _check_type(kind: str, parameters: Sending) -> None:
    if kind == "TRANSACTION":
        raise ArgumentError("a topic of type TRANSACTION accepts only transactions", next_step="use a producer")
    if kind == "FIFO" and parameters.message_group is UNSET:
        raise ArgumentError("a topic of type FIFO needs a message group", next_step="give messageGroup")
    if kind == "DELAY" and parameters.delivery_timestamp is UNSET:
        raise ArgumentError("a topic of type DELAY needs a time", next_step="give deliveryTimestamp")


def _message(parameters: Sending) -> Message:
    properties: dict[str, str] = {}
    if isinstance(parameters.properties, str):
        try:
            properties = msgspec.convert(json.loads(parameters.properties), dict[str, str])
        except (ValueError, msgspec.ValidationError, RecursionError):
            raise ArgumentError("properties must be a JSON object of texts") from None
    if isinstance(parameters.message_group, str):
        properties[SHARDING_KEY] = parameters.message_group
    due = given(parameters.delivery_timestamp, None)
    try:
        return Message(
            parameters.topic_name,
            parameters.body.encode(),
            tags=given(parameters.tag, None),
            keys=[] if parameters.key is UNSET else [parameters.key],
            properties=properties,
            deliver_at=None if due is None else datetime.fromtimestamp(due / 1000, UTC),
        )
    except (ValueError, OverflowError, OSError) as error:  # also a surrogate in the body
        raise ArgumentError(f"the message is not valid: {error}") from None


async def redeliver(call: Call, parameters: Redelivery) -> Plan:
    """Plan another delivery of a message, to one group or to a topic."""
    admin, group = call.admin, parameters.group_name
    await check_group_exists(admin, group)
    source = given(parameters.source_topic, None)
    try:
        message = await admin.message_by_id(parameters.msg_id, source)
    except ValueError:
        raise ArgumentError(
            "the message was not found by its id", next_step="give sourceTopic, or the offsetMsgId of the message"
        ) from None
    target = given(parameters.target_topic, retry_topic(group))
    if is_system_topic(target):
        raise ArgumentError(f"{target} belongs to the servers", next_step="choose another topic")
    try:
        await admin.topic_route(target)
    except RouteNotFoundError:
        raise CometMQError(
            f"topic {target} does not exist, so group {group} cannot get a copy",
            next_step="start a consumer of the group once, or give targetTopic",
        ) from None
    members = await members_of(admin, group)
    original = call.untrusted.text(message.topic)

    async def run() -> dict[str, Any]:
        new_id = UniqIdGenerator().next()
        further = {UNIQ_KEY: new_id, ORIGIN_MESSAGE_ID: message.offset_msg_id}
        if target == retry_topic(group):
            further[RETRY_TOPIC] = message.topic
        await send_copy(admin, message, target, further)
        old_id = call.untrusted.text(message.msg_id)
        return {"redelivered": True, "originalMsgId": old_id, "newMsgId": new_id, "targetTopic": target}

    only = (
        f"only group {group} receives the copy"
        if target == retry_topic(group)
        else f"all groups of {target} receive it"
    )
    return Plan(
        f"Send a copy of message {message.offset_msg_id} of topic {original} to {target}.",
        [only],
        {"topic": original, "offsetMsgId": message.offset_msg_id, "size": len(message.stored_body)},
        {"targetTopic": target},
        run,
        [] if members else [f"Group {group} has no online members; it receives the copy when they start."],
    )


async def redeliver_dead_letters(call: Call, parameters: DeadLetterRedelivery) -> Plan:
    """Plan another delivery of a group's dead letters to their original topics."""
    admin, group = call.admin, parameters.group_name
    wrong = check_group(group)  # it is also a part of a file's name
    if wrong is not None:
        raise ArgumentError(wrong, next_step="choose another group")
    wanted = Selection(begin_ms=parameters.time.start_time, end_ms=parameters.time.end_time)
    letters = [letter async for letter in read_dead_letters(admin, group, wanted, MAX_RESENT + 1)]
    is_cut, letters = len(letters) > MAX_RESENT, letters[:MAX_RESENT]
    topics = sorted({origin_topic(letter) or "unknown" for letter in letters})

    async def run() -> dict[str, Any]:
        outcomes: Counter[Outcome] = Counter()
        ledger = call.options.data / f"dlq-{group}.ledger"
        with Ledger(Path(ledger)) as notes:
            await resend(admin, _each(letters), notes, lambda _, outcome, __: outcomes.update((outcome,)))
        sent, failed = outcomes[Outcome.SENT], outcomes[Outcome.FAILED]
        return {
            "matched": len(letters),
            "resent": sent,
            "resentBefore": outcomes[Outcome.SENT_BEFORE],
            "failed": failed,
            "outcome": "SUCCESS" if not failed else "PARTIAL" if sent else "FAILED",
            "scanIncomplete": is_cut,
            "failedQueueCount": 0,
        }

    warnings = (
        [f"Only the first {MAX_RESENT:,} dead letters are sent; repeat the call for the others."] if is_cut else []
    )
    return Plan(
        f"Send {quantity(len(letters), 'dead letter')} of group {group} to their original topics again.",
        [f"all groups of topic {call.untrusted.text(topic)} receive them" for topic in topics[:MAX_ROWS]],
        {"dlqTopic": dlq_topic(group), "matched": len(letters)},
        {"sent": "each dead letter once; those that were sent before are skipped"},
        run,
        warnings,
        guard=[letter.offset_msg_id for letter in letters],
    )


async def _each(letters: list[MessageExt]) -> AsyncIterator[MessageExt]:
    for letter in letters:
        yield letter


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool("rmq.message.send", "L2", "Send one message to a topic.", Sending, send),
    Tool(
        "rmq.message.redelivery",
        "L2",
        "Deliver a stored message again: to one consumer group, or with targetTopic to all groups of a topic.",
        Redelivery,
        redeliver,
    ),
    Tool(
        "rmq.message.redelivery_dlq",
        "L2",
        "Send dead letters of a consumer group to their original topics again, each once.",
        DeadLetterRedelivery,
        redeliver_dead_letters,
    ),
)
"""The tools of this module."""
