"""Tools that read messages: by id, key, time and offset, dead letters, traces, and why one was not consumed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin import END_OF_TIME_MS
from cometmq.client.consumer.newest import Search, newest
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.dead_letters import Selection, describe, names_of_groups, read_dead_letters
from cometmq.client.diagnosis import Question, why_not_consumed
from cometmq.client.diagnosis.place import Extent, message_at, queue_of
from cometmq.client.errors import BrokerError, OtherTopicError, RouteNotFoundError, UnknownBrokerError
from cometmq.client.trace.reader import way_of
from cometmq.client.trace.steps import steps_of
from cometmq.integrations.mcp.catalogue import (
    INSTANCE,
    ArgumentError,
    Call,
    Page,
    Parameters,
    Period,
    Text,
    Tool,
    Whole,
    given,
)
from cometmq.integrations.mcp.options import DEFAULT_ROWS, MAX_ROWS
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP, dlq_topic
from cometmq.message.properties import KEYS, TAGS, UNIQ_KEY
from cometmq.remoting.codes import ResponseCode

_THREE_DAYS_MS: Final = 3 * 86_400_000
_EFFORT: Final = 20_000
"""Maximum number of offsets that a search by time looks at."""


class QueryParameters(Parameters, kw_only=True):
    """Parameters of a search by id or key."""

    topic_name: Text = msgspec.field(name="topicName")
    msg_id: Annotated[Text | UnsetType, Meta(description="Offset id of the broker, or the client's id.")] = (
        msgspec.field(default=UNSET, name="msgId")
    )
    unique_key: Annotated[Text | UnsetType, Meta(description="The client's id of the message.")] = msgspec.field(
        default=UNSET, name="uniqueKey"
    )
    key: Annotated[Text | UnsetType, Meta(description="One of the message's keys.")] = UNSET
    start_time: Annotated[Whole | UnsetType, Meta(description="Epoch ms of the first store time.")] = msgspec.field(
        default=UNSET, name="startTime"
    )
    end_time: Annotated[Whole | UnsetType, Meta(description="Epoch ms of the last store time.")] = msgspec.field(
        default=UNSET, name="endTime"
    )


class ByTopicParameters(Parameters, kw_only=True):
    """Parameters of a search by time."""

    topic_name: Text = msgspec.field(name="topicName")
    tag: Annotated[Text | UnsetType, Meta(description="Tags to find, for example a || b.")] = UNSET
    start_time: Annotated[Whole | UnsetType, Meta(description="Epoch ms of the first store time.")] = msgspec.field(
        default=UNSET, name="startTime"
    )
    end_time: Annotated[Whole | UnsetType, Meta(description="Epoch ms of the last store time.")] = msgspec.field(
        default=UNSET, name="endTime"
    )
    limit: Annotated[int, Meta(ge=1, le=MAX_ROWS, description="Number of newest messages.")] = DEFAULT_ROWS


class OffsetParameters(Parameters, kw_only=True):
    """A place in a queue."""

    topic_name: Text = msgspec.field(name="topicName")
    broker_name: Annotated[Text | UnsetType, Meta(description="Needed if several brokers have the topic.")] = (
        msgspec.field(default=UNSET, name="brokerName")
    )
    queue_id: Whole = msgspec.field(name="queueId")
    offset: Whole


class DeadLetterParameters(Parameters, kw_only=True):
    """Parameters of a list of dead letters."""

    group_name: Annotated[Text | UnsetType, Meta(description="Without it, the groups with dead letters.")] = (
        msgspec.field(default=UNSET, name="groupName")
    )
    search: Annotated[Text | UnsetType, Meta(description="A key, tag or message id.")] = UNSET
    time: Period = msgspec.field(default_factory=Period)
    page: Page = msgspec.field(default_factory=Page)


class TraceParameters(Parameters, kw_only=True):
    """Parameters of a trace."""

    topic_name: Annotated[Text | UnsetType, Meta(description="Ignored; the trace topic has all traces.")] = (
        msgspec.field(default=UNSET, name="topicName")
    )
    msg_id: Annotated[Text, Meta(description="The client's id of the message.")] = msgspec.field(name="msgId")


class WhyParameters(Parameters, kw_only=True):
    """A message and a group."""

    topic_name: Text = msgspec.field(name="topicName")
    group_name: Text = msgspec.field(name="groupName")
    msg_id: Annotated[
        Text | UnsetType, Meta(description="The client's id or the offset id; or give queue and offset.")
    ] = msgspec.field(default=UNSET, name="msgId")
    broker_name: Text | UnsetType = msgspec.field(default=UNSET, name="brokerName")
    queue_id: Whole | UnsetType = msgspec.field(default=UNSET, name="queueId")
    offset: Whole | UnsetType = UNSET
    account: Annotated[Text | UnsetType, Meta(description="Access key of the group's members; checks its rights.")] = (
        UNSET
    )


def message_row(call: Call, message: MessageExt) -> dict[str, Any]:
    """Return a message as an item of Studio's catalogue; what strangers wrote is marked."""
    untrusted = call.untrusted
    further = {name: value for name, value in message.properties.items() if name not in (KEYS, TAGS, UNIQ_KEY)}
    row: dict[str, Any] = {
        "msgId": untrusted.text(message.msg_id),
        "offsetMsgId": message.offset_msg_id,
        "topic": untrusted.text(message.topic),
        **untrusted.own_spelling(message.topic),
        "tag": untrusted.optional(message.tags),
        "key": untrusted.optional(" ".join(message.keys)),
        "brokerName": untrusted.name(message.broker_name) if message.broker_name else None,
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "storeTime": message.store_timestamp,
        "bornTime": message.born_timestamp,
        "storeHost": message.store_host,
        "bornHost": message.born_host,
        "reconsumeTimes": message.reconsume_times,
        "properties": untrusted.properties(further),
        **untrusted.body(message),
    }
    return {name: value for name, value in row.items() if value is not None}


async def query(call: Call, parameters: QueryParameters) -> dict[str, Any]:
    """Find messages by offset id, unique key or key; the first that is given decides."""
    topic, admin = parameters.topic_name, call.admin
    found: list[MessageExt] = []
    if isinstance(parameters.msg_id, str):
        try:
            found = [await admin.message_by_id(parameters.msg_id, topic)]
        except (ValueError, OtherTopicError, UnknownBrokerError):
            found = []
        except BrokerError as error:
            if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise
        return {"items": [message_row(call, message) for message in found], "truncated": False}
    unique, key = parameters.unique_key, parameters.key
    wanted = unique if isinstance(unique, str) else key
    if not isinstance(wanted, str):
        raise ArgumentError("the message is not clear", next_step="give msgId, uniqueKey or key")
    recent = max(0, call.clock.now_ms() - _THREE_DAYS_MS) if isinstance(unique, str) else 0
    found = await admin.query_message(
        topic,
        wanted,
        max_messages=DEFAULT_ROWS + 1,
        begin_ms=given(parameters.start_time, recent),
        end_ms=given(parameters.end_time, END_OF_TIME_MS),
        unique_key=isinstance(unique, str),
    )
    items = [message_row(call, message) for message in found[:DEFAULT_ROWS]]
    return {"items": items, "truncated": len(found) > DEFAULT_ROWS}


async def query_by_topic(call: Call, parameters: ByTopicParameters) -> dict[str, Any]:
    """Find the newest messages of a topic. Nothing is consumed: no group's offset moves."""
    end = given(parameters.end_time, None)
    search = Search(
        parameters.topic_name,
        begin_ms=given(parameters.start_time, None),
        end_ms=None if end is None else end + 1,
        expression=given(parameters.tag, "*"),
        wanted=parameters.limit,
        effort=_EFFORT,
    )
    async with PullConsumer(TOOLS_GROUP, instance=call.admin.instance) as consumer:
        found = await newest(consumer, search, lambda message: message_row(call, message))
    return {
        "items": list(found.messages),
        "truncated": not found.is_complete or len(found.messages) >= parameters.limit,
    }


async def query_by_offset(call: Call, parameters: OffsetParameters) -> dict[str, Any]:
    """Show the message at an offset of a queue."""
    question = Question(
        parameters.topic_name, "", "", given(parameters.broker_name, ""), parameters.queue_id, parameters.offset
    )
    found = await message_at(call.admin, await queue_of(call.admin, question), parameters.offset)
    if isinstance(found, Extent):
        return {"items": [], "minOffset": found.first, "maxOffset": found.end}
    return {"items": [message_row(call, found)]}


async def query_dlq(call: Call, parameters: DeadLetterParameters) -> dict[str, Any]:
    """List the groups with dead letters, or the dead letters of one group."""
    page = parameters.page
    if parameters.group_name is UNSET:
        names = await names_of_groups(call.admin)
        items = [await _dead_letters_of(call, name) for name in page.of(names)]
        return {"instanceId": INSTANCE, "items": items, **page.fields(names)}
    group = parameters.group_name
    wanted = Selection(begin_ms=parameters.time.start_time, end_ms=parameters.time.end_time)
    first, rows, seen = (page.page - 1) * page.page_size, [], 0
    async for letter in read_dead_letters(call.admin, group, wanted):
        search = parameters.search
        if isinstance(search, str) and search not in (*letter.keys, letter.tags, letter.msg_id, letter.offset_msg_id):
            continue
        if first <= seen < first + page.page_size:
            rows.append({"groupName": group, **message_row(call, letter)})
        seen += 1
        if seen > first + page.page_size:
            break
    return {
        "instanceId": INSTANCE,
        "group": group,
        "page": page.page,
        "pageSize": page.page_size,
        "truncated": seen > first + page.page_size,
        "items": rows,
    }


async def _dead_letters_of(call: Call, group: str) -> dict[str, Any]:
    found = await describe(call.admin, group)
    row: dict[str, Any] = {"groupName": call.untrusted.text(group), "dlqTopic": call.untrusted.text(dlq_topic(group))}
    row |= {"statsAvailable": True, "messageCount": 0}
    return row if found is None else {**row, "messageCount": found.count, "lastEnqueueTime": str(found.newest_ms)}


async def trace(call: Call, parameters: TraceParameters) -> dict[str, Any]:
    """Show when a message was sent and consumed, if its clients traced it."""
    try:
        steps = steps_of(await way_of(call.admin, parameters.msg_id))[:MAX_ROWS]
    except RouteNotFoundError:  # nobody has traced anything yet
        steps = []
    nodes, groups = [], []
    for step in steps:
        fields = {name: value for name, value in asdict(step).items() if value is not None}
        described: dict[str, Any] = {
            name: call.untrusted.text(str(fields[name])) for name in ("group", "client", "broker") if name in fields
        }
        node: dict[str, Any] = {"title": step.step, "status": call.untrusted.text(step.result), **described}
        node |= {"timestamp": step.time_ms} if step.time_ms is not None else {}
        node |= {"costTime": step.took_ms} if step.took_ms is not None else {}
        nodes.append(node)
        if step.step == "consumed":
            status = {
                "group": described["group"],
                "deliveryStatus": node["status"],
                "retryCount": (step.attempt or 1) - 1,
            }
            groups.append(status | ({"consumeTime": step.time_ms} if step.time_ms is not None else {}))
    result = {"msgId": call.untrusted.text(parameters.msg_id), "nodes": nodes, "consumerStatus": groups}
    if not nodes:
        result["note"] = "no trace: enable tracing in producer and consumers (enable_msg_trace, in Java enableMsgTrace)"
    return result


async def explain(call: Call, parameters: WhyParameters) -> dict[str, Any]:
    """Explain why a group has not consumed a message."""
    if parameters.msg_id is UNSET and (parameters.queue_id is UNSET or parameters.offset is UNSET):
        raise ArgumentError("the message is not clear", next_step="give msgId, or queueId and offset")
    question = Question(
        parameters.topic_name,
        parameters.group_name,
        given(parameters.msg_id, ""),
        given(parameters.broker_name, ""),
        given(parameters.queue_id, None),
        given(parameters.offset, None),
        given(parameters.account, ""),
    )
    found = await why_not_consumed(call.admin, question)
    untrusted = call.untrusted
    is_usual = untrusted.name(found.broker) == found.broker
    clean = untrusted.sentence if is_usual else untrusted.quoting  # sentences name the broker
    decisive = found.decisive
    return {
        "answer": clean(found.answer),
        "cause": None if decisive is None else decisive.name,
        "nextStep": "" if decisive is None else clean(decisive.next_step),
        "message": {
            "msgId": untrusted.optional(found.msg_id),
            **untrusted.own_spelling(parameters.topic_name),
            "brokerName": untrusted.name(found.broker) if found.broker else None,
            "queueId": found.queue_id,
            "offset": found.queue_offset,
        },
        "checks": [
            {
                "check": one.name,
                "verdict": one.verdict.value,
                "evidence": clean(one.evidence),
                "nextStep": clean(one.next_step),
            }
            for one in found.checks
        ],
    }


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        "why_not_consumed",
        "L1",
        "Explain why a consumer group has not consumed a message. Checks every cause with evidence and next step: not "
        "stored, deleted, delayed, half (transaction), life time over, queue not readable, group missing or disabled, "
        "permission, dead letter, retry, no members, queue owner and order lock, subscription and filter, in flight "
        "(POP), lag. Start here when somebody asks where a message is.",
        WhyParameters,
        explain,
    ),
    Tool("rmq.message.query", "L1", "Find messages of a topic by msgId, uniqueKey or key.", QueryParameters, query),
    Tool(
        "rmq.message.query_by_topic",
        "L1",
        "Show the newest messages of a topic, optionally of a time range or tag. Moves no group's offset.",
        ByTopicParameters,
        query_by_topic,
    ),
    Tool(
        "rmq.message.query_by_offset",
        "L1",
        "Show the message at an offset of a queue.",
        OffsetParameters,
        query_by_offset,
    ),
    Tool(
        "rmq.message.query_dlq",
        "L1",
        "List groups with dead letters, or the dead letters of one group.",
        DeadLetterParameters,
        query_dlq,
    ),
    Tool(
        "rmq.message.trace", "L1", "Show the traced way of a message: sends and consumptions.", TraceParameters, trace
    ),
)
"""The tools of this module."""
