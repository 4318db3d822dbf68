"""Tools that read clusters, brokers, topics, groups and clients."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from cometmq.client.admin import QueueProgress
from cometmq.client.admin.broker_status import BrokerStatus
from cometmq.client.admin.group_summary import progress_of, summaries_of, users_groups
from cometmq.client.admin.members import check_group_exists, connection_of, contradictions, subscriptions_of
from cometmq.client.admin.several import answered, asked_masters, users_topics
from cometmq.client.admin.topic_settings import MESSAGE_TYPES, type_of
from cometmq.client.diagnosis.checks import Unavailable, quote, tried
from cometmq.errors import CometMQError
from cometmq.integrations.mcp.catalogue import INSTANCE, Call, Page, Parameters, Text, Tool, given
from cometmq.integrations.mcp.options import MAX_ROWS
from cometmq.message.names import MASTER_ID, PERM_READ, PERM_WRITE, retry_topic
from cometmq.remoting.admin_bodies import Connection, ConsumerConnection
from cometmq.remoting.bodies import TopicRouteData
from cometmq.remoting.codes import version_name

PERMISSIONS: Final = {"RW": PERM_READ | PERM_WRITE, "RO": PERM_READ, "WO": PERM_WRITE}
_MODES: Final = {"CONSUME_POP": "Pop"}


class ClusterParameters(Parameters, kw_only=True):
    """Parameters of tools about clusters."""

    cluster: Text | UnsetType = UNSET
    status: Literal["healthy", "offline"] | UnsetType = UNSET


class BrokerParameters(Parameters, kw_only=True):
    """Parameters of tools about brokers."""

    cluster_name: Annotated[Text | UnsetType, Meta(description="Only brokers of this cluster.")] = msgspec.field(
        default=UNSET, name="clusterName"
    )


class OneBroker(BrokerParameters, kw_only=True):
    """A broker's name."""

    broker_name: Text = msgspec.field(name="brokerName")


class TopicsParameters(Parameters, kw_only=True):
    """Parameters of a list of topics."""

    topic_name: Annotated[Text | UnsetType, Meta(description="Part of the topic's name.")] = msgspec.field(
        default=UNSET, name="topicName"
    )
    type: Literal[MESSAGE_TYPES] | UnsetType = UNSET  # type: ignore[valid-type]
    page: Page = msgspec.field(default_factory=Page)


class OneTopic(Parameters, kw_only=True):
    """A topic's name."""

    topic_name: Text = msgspec.field(name="topicName")


class GroupsParameters(Parameters, kw_only=True):
    """Parameters of a list of groups."""

    group_name: Annotated[Text | UnsetType, Meta(description="Part of the group's name.")] = msgspec.field(
        default=UNSET, name="groupName"
    )
    page: Page = msgspec.field(default_factory=Page)


class OneGroup(Parameters, kw_only=True):
    """A group's name, and one of its topics."""

    group_name: Text = msgspec.field(name="groupName")
    topic_name: Annotated[Text | UnsetType, Meta(description="Show the progress in this topic only.")] = msgspec.field(
        default=UNSET, name="topicName"
    )


class ClientsParameters(Parameters, kw_only=True):
    """Parameters of a list of clients."""

    type: Literal["Producer", "Consumer"] | UnsetType = UNSET
    search: Annotated[Text | UnsetType, Meta(description="Part of a client id, group or address.")] = UNSET
    page: Page = msgspec.field(default_factory=Page)


async def list_clusters(call: Call, parameters: ClusterParameters) -> dict[str, Any]:
    """List the clusters of the nameserver."""
    info = await call.admin.cluster_info()
    items = []
    for name, brokers in sorted(info.cluster_addr_table.items()):
        if parameters.cluster not in (UNSET, name):
            continue
        known = [info.broker_addr_table[broker] for broker in brokers if broker in info.broker_addr_table]
        status = "healthy" if any(MASTER_ID in broker.broker_addrs for broker in known) else "offline"
        if parameters.status in (UNSET, status):
            shown = call.untrusted.name(name)
            names = list(map(call.untrusted.name, sorted(brokers)))
            items.append({"id": shown, "name": shown, "type": "V4_DIRECT", "status": status, "brokers": names})
    return {"items": items}


async def list_nameservers(call: Call, _: Parameters) -> dict[str, Any]:
    """List the nameservers, and whether each of them answers."""
    items = []
    for address in call.admin.instance.routes.namesrv:
        found = await tried(call.admin.cluster_info(address))
        is_up = not isinstance(found, Unavailable)
        description = call.untrusted.sentence(found.reason) if isinstance(found, Unavailable) else None
        items.append(
            {
                "id": address,
                "name": address,
                "namesrvAddr": address,
                "k8sNamespace": None,
                "k8sId": None,
                "status": "online" if is_up else "offline",
                "description": description,
            }
        )
    return {"items": items}


async def list_brokers(call: Call, parameters: BrokerParameters) -> dict[str, Any]:
    """List the masters with their figures."""
    masters = await call.admin.masters(given(parameters.cluster_name, None))
    tables = await answered(call.admin, {name: tried(call.admin.runtime_info(at)) for name, at in masters.items()})
    return {"items": [_broker(call, name, masters[name], tables.get(name)) for name in masters]}


async def describe_broker(call: Call, parameters: OneBroker) -> dict[str, Any]:
    """Describe one broker: its figures and its replicas."""
    masters = await call.admin.masters(given(parameters.cluster_name, None))
    name = parameters.broker_name
    if name not in masters:
        known = ", ".join(map(quote, masters))
        raise CometMQError(f"there is no broker {name}", next_step=f"choose one of: {known}")
    table = await tried(call.admin.runtime_info(masters[name]))
    info = await call.admin.cluster_info()
    addresses = info.broker_addr_table[name].broker_addrs
    replicas = {str(number): call.untrusted.name(at) for number, at in addresses.items()}
    fields = _broker(call, name, masters[name], table)
    return {"brokerName": fields.pop("name"), **fields, "brokerAddrs": replicas}


def _broker(call: Call, name: str, address: str, table: dict[str, str] | Unavailable | None) -> dict[str, Any]:
    clean = call.untrusted.name
    row: dict[str, Any] = {"name": clean(name), "addr": clean(address), "version": None, "status": "offline"}
    if table is None or isinstance(table, Unavailable):
        reason = "no answer" if table is None else call.untrusted.sentence(table.reason)
        return {**row, "diskUsage": 0, "tpsIn": 0, "tpsOut": 0, "runtimeStatsAvailable": False, "reason": reason}
    state = BrokerStatus.of(table)
    return {
        **row,
        "version": call.untrusted.optional(state.version),
        "status": "online",
        "diskUsage": state.disk_used_percent or 0,
        "tpsIn": state.in_per_s or 0,
        "tpsOut": state.out_per_s or 0,
        "putMessagesToday": state.messages_today or 0,
        "runtimeStatsAvailable": True,
        "dispatchBehindBytes": state.dispatch_behind_bytes,
    }


async def list_topics(call: Call, parameters: TopicsParameters) -> dict[str, Any]:
    """List the users' topics."""
    wanted = given(parameters.topic_name, "").lower()
    names = [name for name in await users_topics(call.admin) if wanted in name.lower()]
    types = await _types(call)
    if parameters.type is not UNSET:
        if types is None:
            raise CometMQError("the brokers do not tell the types of topics", next_step="list topics without a type")
        names = [name for name in names if types.get(name, MESSAGE_TYPES[0]) == parameters.type]
    shown = parameters.page.of(names)
    routes = await call.admin.topic_routes(shown)
    items = [_topic(call, name, routes[name], types) for name in shown if name in routes]
    return {"items": items, **parameters.page.fields(names)}


async def _types(call: Call) -> dict[str, str] | None:
    """Return the type of each topic, or None if this account may not ask."""
    tables = await tried(asked_masters(call.admin, lambda _, address: call.admin.topic_configs(address)))
    if isinstance(tables, Unavailable):
        return None
    return {name: type_of(config) for table in tables.values() for name, config in table.items()}


def _topic(call: Call, name: str, route: TopicRouteData, types: dict[str, str] | None) -> dict[str, Any]:
    perm = 0
    for data in route.queue_datas:
        perm |= data.perm
    cluster = next((call.untrusted.name(one.cluster) for one in route.broker_datas), "")
    row: dict[str, Any] = {"name": call.untrusted.name(name), **call.untrusted.own_spelling(name), "clusterId": cluster}
    if types is not None:
        row["type"] = types.get(name, MESSAGE_TYPES[0])
    return {
        **row,
        "writeQueues": sum(data.write_queue_nums for data in route.queue_datas),
        "readQueues": sum(data.read_queue_nums for data in route.queue_datas),
        "perm": permission(perm),
    }


def permission(bits: int) -> str:
    """Return a permission in Studio's words."""
    return next((word for word, wanted in PERMISSIONS.items() if bits & PERMISSIONS["RW"] == wanted), "NONE")


def _routes(call: Call, route: TopicRouteData) -> list[dict[str, Any]]:
    clean = call.untrusted.name
    addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
    rows = []
    for data in sorted(route.queue_datas, key=lambda one: one.broker_name)[:MAX_ROWS]:
        replicas = addresses.get(data.broker_name, {})
        rows.append(
            {
                "brokerName": clean(data.broker_name),
                "masterAddr": clean(replicas[MASTER_ID]) if MASTER_ID in replicas else "",
                "brokerAddrs": {str(number): clean(address) for number, address in sorted(replicas.items())},
                "replicaCount": len(replicas),
                "writeQueues": data.write_queue_nums,
                "readQueues": data.read_queue_nums,
                "perm": permission(data.perm),
                "permCode": data.perm,
                "readable": bool(data.perm & PERM_READ),
                "writable": bool(data.perm & PERM_WRITE),
            }
        )
    return rows


async def route_of_topic(call: Call, parameters: OneTopic) -> dict[str, Any]:
    """Show a topic's brokers and queues."""
    return {"items": _routes(call, await call.admin.topic_route(parameters.topic_name))}


async def describe_topic(call: Call, parameters: OneTopic) -> dict[str, Any]:
    """Show a topic's settings, groups, routes and offsets."""
    name = parameters.topic_name
    route = await call.admin.topic_route(name)
    found = await tried(call.admin.topic_types(name))
    types = None if isinstance(found, Unavailable) else {name: next(iter(found.values()), MESSAGE_TYPES[0])}
    groups = await tried(call.admin.groups_of_topic(name))
    result: dict[str, Any] = {"instanceId": INSTANCE, **_topic(call, name, route, types)}
    result["consumerGroups"] = [] if isinstance(groups, Unavailable) else await _groups_of(call, name, groups)
    result["routes"] = _routes(call, route)
    stats = await tried(call.admin.topic_stats(name))
    if not isinstance(stats, Unavailable):
        result["queueStats"] = [
            {
                "brokerName": call.untrusted.name(queue.broker_name),
                "queueId": queue.queue_id,
                "minOffset": offsets.min_offset,
                "maxOffset": offsets.max_offset,
                "lastUpdateTimestamp": offsets.last_update_timestamp,
            }
            for queue, offsets in sorted(stats.offset_table.items())[:MAX_ROWS]
        ]
    missing = [call.untrusted.sentence(one.reason) for one in (found, groups, stats) if isinstance(one, Unavailable)]
    return {**result, "notAvailable": missing} if missing else result


async def _groups_of(call: Call, topic: str, groups: list[str]) -> list[dict[str, Any]]:
    rows = []
    for group in groups[:MAX_ROWS]:
        progress = await tried(progress_of(call.admin, group, topic))
        lag = 0 if isinstance(progress, Unavailable) else progress.lag
        rows.append(
            {
                "group": call.untrusted.text(group),
                "diffTotal": lag,
                "metricsAvailable": not isinstance(progress, Unavailable),
            }
        )
    return rows


async def list_groups(call: Call, parameters: GroupsParameters) -> dict[str, Any]:
    """List the consumer groups with their members and lag."""
    wanted = given(parameters.group_name, "").lower()
    configs = await call.admin.groups()
    names = [name for name in await users_groups(call.admin) if wanted in name.lower()]
    shown = parameters.page.of(names)
    summaries = await summaries_of(call.admin, shown)
    items = []
    for name in shown:
        row: dict[str, Any] = {
            "name": call.untrusted.text(name),
            "onlineInstances": summaries[name].members,
            "totalLag": summaries[name].lag,
            "subscribedTopics": list(map(call.untrusted.text, summaries[name].topics[:MAX_ROWS])),
            "retryMaxTimes": configs[name].retry_max_times,
        }
        if summaries[name].model:
            row["consumeType"] = call.untrusted.text((summaries[name].model or "").upper())
        items.append(row)
    return {"items": items, **parameters.page.fields(names)}


async def describe_group(call: Call, parameters: OneGroup) -> dict[str, Any]:
    """Show a group's members, subscriptions, progress and health."""
    admin, group, topic = call.admin, parameters.group_name, given(parameters.topic_name, None)
    await check_group_exists(admin, group)
    config = (await admin.groups())[group]
    connections = await asked_masters(admin, lambda _, address: connection_of(admin, group, address))
    connection = next((one for one in connections.values() if one.connection_set), ConsumerConnection())
    members = await subscriptions_of(admin, group)
    progress = await progress_of(admin, group, topic)
    own = [one for one in progress.queues if one.queue.topic != retry_topic(group)]
    different = contradictions(members)
    lag = sum(one.lag for one in own)
    topics = sorted({one.queue.topic for one in own} | set(connection.subscription_table) - {retry_topic(group)})
    clients = [_client(call, member.connection, member.subscriptions) for member in members[:MAX_ROWS]]
    reasons = list(map(call.untrusted.text, different)) + ["the group has no online members"] * (not members)
    status = "HEALTHY" if not reasons else "UNHEALTHY" if not members and lag else "WARNING"
    result: dict[str, Any] = {
        "instanceId": INSTANCE,
        "group": group,
        "onlineInstances": len(members),
        "totalLag": lag,
        "subscribedTopics": list(map(call.untrusted.text, topics[:MAX_ROWS])),
        "retryMaxTimes": config.retry_max_times,
        "delaySeconds": 0,
        "deliveryOrderType": "Orderly" if config.consume_message_orderly is True else "Concurrently",
        "consumeEnabled": config.consume_enable,
        "subscriptions": _subscriptions(call, group, connection, different),
        "health": {"status": status, "reasons": reasons},
        "progress": {"totalLag": lag, "queues": _queues(call, own)},
        "clients": {"totalClients": len(members), "clients": clients},
    }
    if connection.connection_set:
        result["subscriptionMode"] = _MODES.get(connection.consume_type or "", "Push")
        result["consumeType"] = call.untrusted.optional(connection.message_model) or ""
    return result


def _subscriptions(
    call: Call, group: str, connection: ConsumerConnection, different: list[str]
) -> list[dict[str, Any]]:
    return [
        {
            "topic": call.untrusted.text(data.topic),
            **call.untrusted.own_spelling(data.topic),
            "expression": call.untrusted.text(data.sub_string or "*"),
            "filterMode": call.untrusted.text(data.expression_type or "TAG"),
            "consistency": "different" if any(f"topic {data.topic}:" in one for one in different) else "same",
        }
        for data in list(connection.subscription_table.values())[:MAX_ROWS]
        if data.topic != retry_topic(group)
    ]


def _queues(call: Call, progress: list[QueueProgress]) -> list[dict[str, Any]]:
    """Return the queues with the most lag first."""
    return [
        {
            "topic": call.untrusted.name(one.queue.topic),
            **call.untrusted.own_spelling(one.queue.topic),
            "broker": call.untrusted.name(one.queue.broker_name),
            "queueId": one.queue.queue_id,
            "brokerOffset": one.broker_offset,
            "consumerOffset": one.consumer_offset,
            "lag": one.lag,
            "inFlight": one.in_flight,
        }
        for one in sorted(progress, key=lambda one: -one.lag)[:MAX_ROWS]
    ]


def _client(call: Call, connection: Connection, subscriptions: Any = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "clientId": call.untrusted.text(connection.client_id),
        "protocol": "Remoting" if subscriptions is not None else "UNKNOWN",
        "address": call.untrusted.text(connection.client_addr),
        "language": call.untrusted.text(connection.language),
        "version": version_name(connection.version),
        "subscribedTopics": list(map(call.untrusted.text, sorted(subscriptions or ())[:MAX_ROWS])),
        "topicLag": {},
    }
    return row


async def list_clients(call: Call, parameters: ClientsParameters) -> dict[str, Any]:
    """List the connected producers and consumers."""
    admin, rows = call.admin, []
    missing: list[str] = []
    if parameters.type in (UNSET, "Consumer"):
        groups = await users_groups(admin)
        found = await answered(admin, {group: connection_of(admin, group) for group in groups})
        for group, connection in sorted(found.items()):
            rows += [("Consumer", group, one.client_id, one.client_addr) for one in connection.connection_set]
    if parameters.type in (UNSET, "Producer"):
        tables = await asked_masters(admin, lambda _, address: tried(admin.producers(address)))
        seen = set()
        for table in tables.values():
            if isinstance(table, Unavailable):
                missing.append(call.untrusted.sentence(table.reason))
                continue
            for group, producers in table.data.items():
                seen |= {("Producer", group, one.client_id, one.remote_ip) for one in producers}
        rows += sorted(seen)
    wanted = given(parameters.search, "").lower()
    rows = [row for row in rows if wanted in " ".join(row[1:]).lower()]
    items = []
    for kind, group, client_id, address in parameters.page.of(rows):
        row: dict[str, Any] = {"clientId": call.untrusted.text(client_id), "type": kind}
        row["producerGroup" if kind == "Producer" else "groupOrTopic"] = call.untrusted.text(group)
        items.append({**row, "address": call.untrusted.text(address), "partial": bool(missing)})
    result = {"items": items, **parameters.page.fields(rows)}
    return {**result, "notAvailable": missing} if missing else result


TOOLS: Final[tuple[Tool[Any], ...]] = (
    Tool(
        "rmq.cluster.list",
        "L1",
        "List the RocketMQ clusters that the nameserver knows.",
        ClusterParameters,
        list_clusters,
    ),
    Tool("rmq.nameserver.list", "L1", "List the nameservers and whether they answer.", Parameters, list_nameservers),
    Tool(
        "rmq.broker.list", "L1", "List the brokers with version, rates and disk usage.", BrokerParameters, list_brokers
    ),
    Tool("rmq.broker.describe", "L1", "Describe one broker and its replicas.", OneBroker, describe_broker),
    Tool(
        "rmq.topic.list",
        "L1",
        "List topics with type, queues and permission, one page at a time.",
        TopicsParameters,
        list_topics,
    ),
    Tool(
        "rmq.topic.detail",
        "L1",
        "Show a topic: type, groups with lag, routes and offsets of each queue.",
        OneTopic,
        describe_topic,
    ),
    Tool("rmq.topic.route", "L1", "Show the brokers and queues of a topic.", OneTopic, route_of_topic),
    Tool(
        "rmq.group.list",
        "L1",
        "List consumer groups with members and lag, one page at a time.",
        GroupsParameters,
        list_groups,
    ),
    Tool(
        "rmq.group.detail",
        "L1",
        "Show a consumer group: health, members, subscriptions and progress; the queues with most lag first.",
        OneGroup,
        describe_group,
    ),
    Tool(
        "rmq.client.list",
        "L1",
        "List connected producers and consumers, one page at a time.",
        ClientsParameters,
        list_clients,
    ),
)
"""The tools of this module."""
