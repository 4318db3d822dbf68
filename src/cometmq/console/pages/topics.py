"""The topic pages: the list, queues, consumers and producers; topics can be created, changed and deleted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from starlette.responses import Response

from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.group_summary import progress_of
from cometmq.client.admin.several import asked_masters, chosen_masters, gathered, users_topics
from cometmq.client.admin.topic_settings import (
    DEFAULT_QUEUES,
    MAX_QUEUES,
    MESSAGE_TYPES,
    PERMISSIONS,
    Settings,
    differences,
    hidden_messages,
    other_attributes,
    permission_text,
    put_topic_on,
    removed_queues,
    settings_text,
    topics_of_brokers,
    type_of,
)
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.console.listing import listing
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page
from cometmq.message.names import DLQ_PREFIX, MESSAGE_TYPE, RETRY_PREFIX
from cometmq.remoting.admin_bodies import ProducerInfo
from cometmq.remoting.bodies import TopicConfig, TopicRouteData
from cometmq.remoting.errors import RemotingError

_KINDS = ("", "retry", "dead", "all")


@dataclass(frozen=True)
class TopicLine:
    """A topic in the list. Values that no broker reports are ``None``."""

    name: str
    brokers: int
    read_queues: int
    write_queues: int
    permission: str
    messages: int | None
    last_ms: int | None


async def show_list(ask: Ask) -> Response:
    """Show the topics whose names contain a text."""
    kind = ask.text("kind")
    found = listing(await _names(ask.admin, kind), ask.text("q"), ask.whole("page"))
    lines = await gathered({name: _line(ask.admin, name) for name in found.names})
    template = "topics/rows.html" if ask.is_part else "topics/list.html"
    return ask.page(template, found=found, lines=lines.values(), kind=kind if kind in _KINDS else "")


async def _names(admin: Admin, kind: str) -> list[str]:
    if kind == "retry":
        return [name for name in await admin.topics() if name.startswith(RETRY_PREFIX)]
    if kind == "dead":
        return [name for name in await admin.topics() if name.startswith(DLQ_PREFIX)]
    return await (admin.topics() if kind == "all" else users_topics(admin))


async def _line(admin: Admin, name: str) -> TopicLine:
    try:
        route = await admin.topic_route(name)
    except RouteNotFoundError:
        route = TopicRouteData()
    messages = last_ms = None
    with suppress(BrokerError, RemotingError, RouteNotFoundError):
        offsets = (await admin.topic_stats(name)).offset_table.values()
        messages = sum(queue.max_offset - queue.min_offset for queue in offsets)
        last_ms = max((queue.last_update_timestamp for queue in offsets), default=0)
    return TopicLine(
        name=name,
        brokers=len(route.queue_datas),
        read_queues=sum(queues.read_queue_nums for queues in route.queue_datas),
        write_queues=sum(queues.write_queue_nums for queues in route.queue_datas),
        permission=", ".join(sorted({permission_text(queues.perm) for queues in route.queue_datas})),
        messages=messages,
        last_ms=last_ms,
    )


async def show_topic(ask: Ask) -> Response:
    """Show one topic: its queues on each broker, its consumer groups and their progress."""
    topic, admin = ask.path("topic"), ask.admin
    route = await admin.topic_route(topic)
    table = (await admin.topic_stats(topic)).offset_table
    names: list[str] = []
    with suppress(BrokerError, RemotingError):
        names = await admin.groups_of_topic(topic)
    found = listing(names, ask.text("q"), ask.whole("page"))
    groups = await gathered({name: _lag(admin, name, topic) for name in found.names})
    attributes = await admin.topic_attributes(topic)
    return ask.page(
        "topics/topic.html",
        topic=topic,
        settings=sorted(route.queue_datas, key=lambda queues: queues.broker_name),
        permission_text=permission_text,
        types={name: one.get(MESSAGE_TYPE, MESSAGE_TYPES[0]) for name, one in attributes.items()},
        attributes={name: other_attributes(one) for name, one in attributes.items()},
        queues=sorted(table.items()),
        messages=sum(offsets.max_offset - offsets.min_offset for offsets in table.values()),
        last_ms=max((offsets.last_update_timestamp for offsets in table.values()), default=0),
        rate=await _rate(admin, topic),
        found=found,
        groups=groups,
    )


async def show_producers(ask: Ask) -> Response:
    """Show all connected producers. Brokers know their groups but not their topics."""
    tables = await asked_masters(ask.admin, lambda _, address: ask.admin.producers(address))
    found: dict[str, dict[str, ProducerInfo]] = {}
    for table in tables.values():
        for group, members in table.data.items():
            found.setdefault(group, {}).update((member.client_id, member) for member in members)
    producers = {
        f"{group} {name}": (group, member) for group, members in found.items() for name, member in members.items()
    }
    part = listing(sorted(producers), ask.text("q"), ask.whole("page"))
    template = "topics/producer_rows.html" if ask.is_part else "topics/producers.html"
    return ask.page(template, found=part, producers=[producers[name] for name in part.names])


async def _lag(admin: Admin, group: str, topic: str) -> int | None:
    try:
        return (await progress_of(admin, group, topic)).lag
    except (BrokerError, RemotingError, RouteNotFoundError):
        return None


async def _rate(admin: Admin, topic: str) -> float | None:
    try:
        return await admin.rate("TOPIC_PUT_NUMS", topic)
    except (BrokerError, RemotingError):
        return None


# --- changes --------------------------------------------------------------------------------------
async def new_form(ask: Ask) -> Response:
    """Ask for the settings of a new topic."""
    masters = await ask.admin.masters()
    return ask.page("topics/new.html", masters=masters, queues=DEFAULT_QUEUES, most=MAX_QUEUES, types=MESSAGE_TYPES)


async def create(ask: Ask) -> Plan:
    """Create a topic on every broker or on one broker. Existing topics are not changed."""
    topic = ask.topic_to_write()
    queues = ask.whole("queues", least=1, most=MAX_QUEUES) or DEFAULT_QUEUES
    wanted = TopicConfig(
        topic_name=topic,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERMISSIONS[_permission(ask) or "rw"],
        order=ask.text("order") == "yes",
        attributes=None if (chosen := _message_type(ask)) is None else {MESSAGE_TYPE: chosen},
    )
    masters = await chosen_masters(ask.admin, None, ask.text("broker") or None)
    existing = await topics_of_brokers(ask.admin, topic, masters)
    for name, config in existing.items():
        if differences(name, config, wanted):
            raise FormError(
                ask.t(
                    "{topic} already exists on {broker} with {settings}",
                    topic=topic,
                    broker=name,
                    settings=settings_text(config),
                ),
                next_step=ask.t("change it on its own page"),
            )
    missing = {name: address for name, address in masters.items() if name not in existing}
    if not missing:
        raise FormError(ask.t("{topic} already exists with these settings on all brokers", topic=topic))

    async def run() -> str:
        await put_topic_on(ask.admin, dict.fromkeys(missing, wanted), masters, "created")
        await ask.admin.until_routed(topic, missing.values())
        return ask.t("Topic {topic} is created.", topic=topic)

    return Plan(
        title=ask.t("Create topic {topic}", topic=topic),
        sentence=ask.t("The topic is created on each of these brokers."),
        action=ask.t("Create it"),
        what="topic.create",
        subject=topic,
        run=run,
        then=f"/topics/{quote(topic, safe='')}",
        back="/topics/new",
        table=Table(
            (ask.t("Broker"), ask.t("Queues"), ask.t("Permission"), ask.t("Ordered"), ask.t("Type")),
            [(name, queues, permission_text(wanted.perm), wanted.order, type_of(wanted)) for name in missing],
        ),
        details={
            "queues": queues,
            "permission": permission_text(wanted.perm),
            "type": type_of(wanted),
            "brokers": ", ".join(missing),
        },
    )


def _permission(ask: Ask) -> str | None:
    text = ask.text("permission") or None
    if text is not None and text not in PERMISSIONS:
        raise FormError(ask.t("{name} must be one of {choices}", name="permission", choices=", ".join(PERMISSIONS)))
    return text


def _message_type(ask: Ask) -> str | None:
    text = ask.text("type") or None
    if text is not None and text not in MESSAGE_TYPES:
        raise FormError(ask.t("{name} must be one of {choices}", name="type", choices=", ".join(MESSAGE_TYPES)))
    return text


async def alter_form(ask: Ask) -> Response:
    """Ask for new settings of a topic."""
    topic = ask.path("topic")
    existing = await topics_of_brokers(ask.admin, topic, await ask.admin.masters())
    if not existing:
        raise NotFoundError(ask.t("topic {topic} does not exist", topic=topic))
    return ask.page(
        "topics/alter.html",
        topic=topic,
        existing=existing,
        permission_text=permission_text,
        type_of=type_of,
        types=MESSAGE_TYPES,
        most=MAX_QUEUES,
    )


async def alter(ask: Ask) -> Plan:
    """Change the given settings on every broker that has the topic."""
    topic = ask.path("topic")
    order = ask.text("order")
    settings = Settings(
        ask.whole("read_queues", least=1, most=MAX_QUEUES),
        ask.whole("write_queues", least=1, most=MAX_QUEUES),
        _permission(ask),
        None if order not in ("yes", "no") else order == "yes",
        attributes={} if (chosen := _message_type(ask)) is None else {MESSAGE_TYPE: chosen},
    )
    masters = await chosen_masters(ask.admin, None, ask.text("broker") or None)
    existing = await topics_of_brokers(ask.admin, topic, masters)
    if not existing:
        raise NotFoundError(ask.t("topic {topic} does not exist", topic=topic))
    wanted = {name: settings.changed(config) for name, config in existing.items()}
    changes = [change for name in existing for change in differences(name, existing[name], wanted[name])]
    if not changes:
        raise FormError(ask.t("{topic} already has these settings", topic=topic))
    hidden = await hidden_messages(ask.admin, existing, wanted)
    warnings = []
    if hidden:
        warnings.append(
            ask.t(
                "{count} messages in the queues {queues} would become unreadable. Lower the write queues first.",
                count=sum(hidden.values()),
                queues=", ".join(hidden),
            )
        )
    if gone := removed_queues(existing, wanted):
        warnings.append(ask.t("Messages waiting for the queues {queues} go to other queues.", queues=", ".join(gone)))

    async def run() -> str:
        changed = {change.broker: wanted[change.broker] for change in changes}
        await put_topic_on(ask.admin, changed, masters, "changed", existing=existing)
        return ask.t("Topic {topic} is changed.", topic=topic)

    address = f"/topics/{quote(topic, safe='')}"
    return Plan(
        title=ask.t("Change topic {topic}", topic=topic),
        sentence=ask.t("These settings change."),
        action=ask.t("Change it"),
        what="topic.alter",
        subject=topic,
        run=run,
        then=address,
        back=f"{address}/alter",
        warnings=warnings,
        typed=topic if hidden else "",
        table=changes_table(ask, changes),
        details={f"{one.broker} {one.setting}": f"{one.old} -> {one.new}" for one in changes},
    )


def changes_table(ask: Ask, changes: Sequence[Change]) -> Table:
    """Return a table with the settings before and after a change."""
    return Table(
        (ask.t("Broker"), ask.t("Setting"), ask.t("Before"), ask.t("After")),
        [(one.broker, one.setting, one.old, one.new) for one in changes],
    )


async def delete(ask: Ask) -> Plan:
    """Delete a topic and its messages."""
    topic = ask.path("topic")
    table = (await ask.admin.topic_stats(topic)).offset_table
    messages = sum(offsets.max_offset - offsets.min_offset for offsets in table.values())
    groups = await ask.admin.groups_of_topic(topic)
    warnings = []
    if groups:
        warnings.append(ask.t("These groups consume it: {groups}", groups=", ".join(groups[:20])))

    async def run() -> str:
        await ask.admin.delete_topic(topic)
        return ask.t("Topic {topic} is deleted.", topic=topic)

    return Plan(
        title=ask.t("Delete topic {topic}", topic=topic),
        sentence=ask.t("The topic and its {count} messages are deleted on every broker.", count=messages),
        action=ask.t("Delete it"),
        what="topic.delete",
        subject=topic,
        run=run,
        then="/topics",
        back=f"/topics/{quote(topic, safe='')}",
        warnings=warnings,
        typed=topic,
        details={"messages": messages},
    )


ROUTES = (
    page("/topics", show_list),
    page("/topics/new", new_form),
    change("/topics/create", create),
    page("/producers", show_producers),
    page("/topics/{topic}", show_topic),
    page("/topics/{topic}/alter", alter_form),
    change("/topics/{topic}/alter", alter),
    change("/topics/{topic}/delete", delete),
)
