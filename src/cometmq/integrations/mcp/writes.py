"""Tools that change topics and groups, each as a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin.group_settings import as_change, groups_of_brokers
from cometmq.client.admin.group_summary import check_no_members, delete_whole_group, own_topics
from cometmq.client.admin.members import check_group_exists, members_of
from cometmq.client.admin.reset import LATEST, Move, Target, planned_moves
from cometmq.client.admin.topic_settings import (
    DEFAULT_QUEUES,
    MAX_QUEUES,
    MESSAGE_TYPES,
    hidden_messages,
    put_topic_on,
    topics_of_brokers,
    type_of,
)
from cometmq.client.diagnosis.checks import quote
from cometmq.errors import CometMQError
from cometmq.integrations.mcp.catalogue import ArgumentError, Call, Confirmed, Drastic, Text, Tool, Whole, given
from cometmq.integrations.mcp.options import MAX_ROWS
from cometmq.integrations.mcp.plans import Plan
from cometmq.integrations.mcp.resources import PERMISSIONS, permission
from cometmq.message.names import DLQ_PREFIX, MESSAGE_TYPE, RETRY_PREFIX, check_group, check_topic, is_system_topic
from cometmq.message.queue_names import topic_meant
from cometmq.quantity import quantity
from cometmq.remoting.bodies import MessageQueue, SubscriptionGroupConfig, TopicConfig

C = TypeVar("C")
Queues = Annotated[int, Meta(ge=1, le=MAX_QUEUES)]


class TopicUpdate(Confirmed, kw_only=True):
    """A topic's new settings."""

    topic_name: Text = msgspec.field(name="topicName")
    type: Annotated[
        Literal[MESSAGE_TYPES] | UnsetType,  # type: ignore[valid-type]
        Meta(description="Type of the messages; only for a topic that does not exist."),
    ] = UNSET
    write_queues: Annotated[Queues | UnsetType, Meta(description="On each broker.")] = msgspec.field(
        default=UNSET, name="writeQueues"
    )
    read_queues: Annotated[Queues | UnsetType, Meta(description="On each broker.")] = msgspec.field(
        default=UNSET, name="readQueues"
    )
    perm: Literal["RW", "RO", "WO"] | UnsetType = UNSET


class TopicDeletion(Drastic, kw_only=True):
    """The topic to delete."""

    topic_name: Text = msgspec.field(name="topicName")


class GroupUpdate(Confirmed, kw_only=True):
    """A group's new settings."""

    group_name: Text = msgspec.field(name="groupName")
    retry_max_times: Annotated[int, Meta(ge=0, le=100)] | UnsetType = msgspec.field(default=UNSET, name="retryMaxTimes")
    delivery_order_type: Literal["Orderly", "Concurrently"] | UnsetType = msgspec.field(
        default=UNSET, name="deliveryOrderType"
    )
    consume_enabled: Annotated[bool | UnsetType, Meta(description="False stops the group's consumption.")] = (
        msgspec.field(default=UNSET, name="consumeEnabled")
    )


class GroupDeletion(Drastic, kw_only=True):
    """The group to delete."""

    group_name: Text = msgspec.field(name="groupName")


class OffsetReset(Confirmed, kw_only=True):
    """The new position of a group."""

    group_name: Text = msgspec.field(name="groupName")
    topic_name: Text = msgspec.field(name="topicName")
    timestamp: Annotated[Whole | UnsetType, Meta(description="Epoch ms; without it, the end of each queue.")] = UNSET


async def update_topic(call: Call, parameters: TopicUpdate) -> Plan:
    """Plan the creation or the change of a topic."""
    admin, name = call.admin, parameters.topic_name
    wrong = check_topic(name)
    if wrong is not None and (of_queue := topic_meant(name)) is not None:
        raise ArgumentError(wrong, next_step=f"choose another topic; that of a queue with this name is {of_queue}")
    if wrong is not None or is_system_topic(name) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise ArgumentError(wrong or f"{name} belongs to the servers", next_step="choose another topic")
    masters = await admin.masters()
    existing = await topics_of_brokers(admin, name, masters)
    if not existing:
        return _new_topic(call, parameters, masters)
    if parameters.type is not UNSET:
        raise ArgumentError(f"topic {name} exists, so its type cannot be changed", next_step="leave out the type")
    wanted = {broker: _changed_topic(config, parameters) for broker, config in existing.items()}
    hidden = await hidden_messages(admin, existing, wanted)
    if hidden:
        raise CometMQError(
            f"{quantity(sum(hidden.values()), 'message')} in {', '.join(map(quote, hidden))} would become unreadable",
            next_step="lower writeQueues first, and readQueues when the consumers have finished",
        )
    changed = {broker: config for broker, config in wanted.items() if config != existing[broker]}

    async def run() -> dict[str, Any]:
        await put_topic_on(admin, changed, masters, "changed", existing=existing)
        return {"topicName": name, "changedOn": _brokers(call, changed)}

    before, after = _fields(existing, _topic_fields), _fields(wanted, _topic_fields)
    return Plan(
        f"Change topic {name} on {quantity(len(changed), 'broker')}.",
        [f"broker {broker}" for broker in _brokers(call, changed)],
        _named(call, before),
        _named(call, after),
        run,
        [] if changed else ["The topic has these settings already; nothing would change."],
        guard=[before, after],
    )


def _new_topic(call: Call, parameters: TopicUpdate, masters: dict[str, str]) -> Plan:
    admin, name = call.admin, parameters.topic_name
    read = given(parameters.read_queues, given(parameters.write_queues, DEFAULT_QUEUES))
    kind = given(parameters.type, MESSAGE_TYPES[0])
    config = TopicConfig(
        topic_name=name,
        read_queue_nums=read,
        write_queue_nums=given(parameters.write_queues, read),
        perm=PERMISSIONS[given(parameters.perm, "RW")],
        attributes={MESSAGE_TYPE: kind} if kind != MESSAGE_TYPES[0] else None,
    )

    async def run() -> dict[str, Any]:
        await put_topic_on(admin, dict.fromkeys(masters, config), masters, "created")
        await admin.until_routed(name, list(masters.values()))
        return {"topicName": name, "createdOn": _brokers(call, masters)}

    after = _fields(dict.fromkeys(masters, config), _topic_fields)
    impact = [f"broker {broker}" for broker in _brokers(call, masters)]
    summary = f"Create topic {name} on {quantity(len(masters), 'broker')}."
    return Plan(summary, impact, {}, _named(call, after), run, guard=after)


def _changed_topic(config: TopicConfig, parameters: TopicUpdate) -> TopicConfig:
    perm = config.perm
    if isinstance(parameters.perm, str):
        perm = perm & ~PERMISSIONS["RW"] | PERMISSIONS[parameters.perm]
    return msgspec.structs.replace(
        config,
        read_queue_nums=given(parameters.read_queues, config.read_queue_nums),
        write_queue_nums=given(parameters.write_queues, config.write_queue_nums),
        perm=perm,
    )


def _topic_fields(config: TopicConfig) -> dict[str, Any]:
    return {
        "type": type_of(config),
        "writeQueues": config.write_queue_nums,
        "readQueues": config.read_queue_nums,
        "perm": permission(config.perm),
    }


async def delete_topic(call: Call, parameters: TopicDeletion) -> Plan:
    """Plan the deletion of a topic."""
    admin, name = call.admin, parameters.topic_name
    if is_system_topic(name):
        raise ArgumentError(f"{name} belongs to the servers, and is not deleted", next_step="choose another topic")
    await admin.topic_route(name)
    stats = (await admin.topic_stats(name)).offset_table
    groups = await admin.groups_of_topic(name)
    count = sum(offsets.max_offset - offsets.min_offset for offsets in stats.values())
    before = {
        "messages": count,
        "queues": _first(
            {_queue(call, queue): [one.min_offset, one.max_offset] for queue, one in sorted(stats.items())}
        ),
        "consumerGroups": [call.untrusted.text(group) for group in groups[:MAX_ROWS]],
    }

    async def run() -> dict[str, Any]:
        await admin.delete_topic(name)
        return {"topicName": name, "deletedMessages": count}

    return Plan(
        f"Delete topic {name} and its {quantity(count, 'message')}.",
        [f"consumer group {call.untrusted.text(group)} loses the topic" for group in groups[:MAX_ROWS]],
        before,
        {},
        run,
        ["The messages cannot be restored without a backup or an archive."],
        guard={"consumerGroups": groups, "queues": [str(queue) for queue in sorted(stats)]},
    )


async def update_group(call: Call, parameters: GroupUpdate) -> Plan:
    """Plan the creation or the change of a group."""
    admin, name = call.admin, parameters.group_name
    wrong = check_group(name)
    if wrong is not None:
        raise ArgumentError(wrong, next_step="choose another name")
    masters = await admin.masters()
    existing = await groups_of_brokers(admin, name, masters)
    wanted = {
        broker: _changed_group(existing.get(broker) or SubscriptionGroupConfig(group_name=name), parameters)
        for broker in masters
    }
    changed = [broker for broker in masters if wanted[broker] != existing.get(broker)]

    async def run() -> dict[str, Any]:
        for broker in changed:
            await admin.create_group(as_change(existing.get(broker), wanted[broker]), broker_address=masters[broker])
        return {"groupName": name, "changedOn": _brokers(call, changed)}

    before, after = _fields(existing, _group_fields), _fields(wanted, _group_fields)
    return Plan(
        f"{'Change' if existing else 'Create'} group {name} on {quantity(len(changed), 'broker')}.",
        [f"broker {broker}" for broker in _brokers(call, changed)],
        _named(call, before),
        _named(call, after),
        run,
        [] if changed else ["The group has these settings already; nothing would change."],
        guard=[before, after],
    )


def _changed_group(config: SubscriptionGroupConfig, parameters: GroupUpdate) -> SubscriptionGroupConfig:
    order = parameters.delivery_order_type
    return msgspec.structs.replace(
        config,
        retry_max_times=given(parameters.retry_max_times, config.retry_max_times),
        consume_enable=given(parameters.consume_enabled, config.consume_enable),
        consume_message_orderly=config.consume_message_orderly if order is UNSET else order == "Orderly",
    )


def _group_fields(config: SubscriptionGroupConfig) -> dict[str, Any]:
    return {
        "retryMaxTimes": config.retry_max_times,
        "deliveryOrderType": "Orderly" if config.consume_message_orderly is True else "Concurrently",
        "consumeEnabled": config.consume_enable,
    }


async def delete_group(call: Call, parameters: GroupDeletion) -> Plan:
    """Plan the deletion of a group with its retry and dead-letter topics."""
    admin, name = call.admin, parameters.group_name
    await check_no_members(admin, name)
    configs = await groups_of_brokers(admin, name, await admin.masters())
    topics = set(await admin.topics())
    lost = [topic for topic in own_topics(name) if topic in topics]
    before = _fields(configs, _group_fields)

    async def run() -> dict[str, Any]:
        await delete_whole_group(admin, name)
        return {"groupName": name, "deletedTopics": lost}

    return Plan(
        f"Delete group {name}, its offsets, and its retry and dead-letter topics.",
        [f"topic {topic} is deleted" for topic in lost],
        {"brokers": _named(call, before), "topics": lost},
        {},
        run,
        ["A group that is created again starts without offsets. Its dead letters are lost."],
        guard=[before, lost],
    )


async def reset_offset(call: Call, parameters: OffsetReset) -> Plan:
    """Plan the reset of a group's offsets in a topic to a time."""
    admin, group, topic = call.admin, parameters.group_name, parameters.topic_name
    await check_group_exists(admin, group)
    timestamp = given(parameters.timestamp, LATEST)
    moves = await planned_moves(admin, group, topic, Target(timestamp_ms=timestamp))
    members = await members_of(admin, group)
    skipped, again = sum(move.skipped or 0 for move in moves), sum(move.again or 0 for move in moves)

    async def run() -> dict[str, Any]:
        await admin.reset_offset(group, topic, timestamp)
        return {"reset": True, "group": group, "topic": topic, "timestamp": timestamp}

    warnings = []
    if skipped:
        warnings.append(f"{quantity(skipped, 'message')} would be skipped, and not consumed.")
    if again:
        warnings.append(f"{quantity(again, 'message')} would be consumed again.")
    return Plan(
        f"Reset group {group} in topic {topic}.",
        [f"{quantity(len(members), 'online member')} would move" if members else "the group has no online members"],
        _offsets(call, moves, before=True),
        _offsets(call, moves, before=False) if timestamp >= 0 else {"every queue": "its end"},
        run,
        warnings,
        guard={"queues": [str(move.queue) for move in moves], "members": members},
    )


def _offsets(call: Call, moves: list[Move], *, before: bool) -> dict[str, Any]:
    return _first({_queue(call, move.queue): move.before if before else move.after for move in moves})


def _fields(configs: Mapping[str, C], fields_of: Callable[[C], dict[str, Any]]) -> dict[str, Any]:
    return {broker: fields_of(config) for broker, config in configs.items()}


def _named(call: Call, by_broker: dict[str, Any]) -> dict[str, Any]:
    """Return fields by broker for an answer, in which the names of brokers are texts of strangers."""
    return {call.untrusted.name(broker): fields for broker, fields in by_broker.items()}


def _brokers(call: Call, names: Iterable[str]) -> list[str]:
    return list(map(call.untrusted.name, sorted(names)))


def _queue(call: Call, queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} on {call.untrusted.name(queue.broker_name)}"


def _first(queues: dict[str, Any]) -> dict[str, Any]:
    """Return as many queues as an answer has room for, and the number of the others."""
    shown = dict(list(queues.items())[:MAX_ROWS])
    return shown if len(shown) == len(queues) else {**shown, "furtherQueues": len(queues) - len(shown)}


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool("rmq.topic.update", "L2", "Create a topic, or change its queues or permission.", TopicUpdate, update_topic),
    Tool("rmq.topic.delete", "L3", "Delete a topic and all its messages.", TopicDeletion, delete_topic),
    Tool("rmq.group.update", "L2", "Create a consumer group, or change its settings.", GroupUpdate, update_group),
    Tool(
        "rmq.group.reset_offset",
        "L2",
        "Move a consumer group to a time in a topic; without a timestamp, to the end.",
        OffsetReset,
        reset_offset,
    ),
    Tool(
        "rmq.group.delete",
        "L3",
        "Delete a consumer group without members, with its retry and dead-letter topics.",
        GroupDeletion,
        delete_group,
    ),
)
"""The tools of this module."""
