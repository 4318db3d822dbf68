"""The group pages: members, subscriptions and lag; groups can be created, changed, reset, cloned and deleted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.responses import JSONResponse, Response

from cometmq.client.admin.group_settings import attributes_of, differences, groups_of_brokers
from cometmq.client.admin.group_summary import delete_whole_group, progress_of, summaries_of, users_groups
from cometmq.client.admin.members import check_group_exists, contradictions, members_of, subscriptions_of
from cometmq.client.admin.reset import EARLIEST, LATEST, Move, Target, execute_moves, planned_moves
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.console.listing import listing
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page
from cometmq.console.pages.lite_topics import address_of
from cometmq.console.pages.topics import changes_table
from cometmq.message.names import check_group, dlq_topic, retry_topic
from cometmq.remoting.admin_bodies import ConsumerRunningInfo
from cometmq.remoting.bodies import SubscriptionGroupConfig
from cometmq.remoting.errors import RemotingError

MAX_RETRIES: Final = 1_000
MAX_RETRY_QUEUES: Final = 64
_BIND_TOPIC: Final = "lite.bind.topic"
"""The attribute of groups that read lite topics."""


def address_of_group(group: str) -> str:
    """Return the address of a group's page."""
    return f"/groups/{quote(group, safe='')}"


async def show_list(ask: Ask) -> Response:
    """Show the groups whose names contain a text."""
    everything = ask.text("kind") == "all"
    names = list(await ask.admin.groups()) if everything else await users_groups(ask.admin)
    found = listing(names, ask.text("q"), ask.whole("page"))
    lines = await summaries_of(ask.admin, found.names)
    template = "groups/rows.html" if ask.is_part else "groups/list.html"
    return ask.page(template, found=found, lines=lines.values(), everything=everything)


async def show_group(ask: Ask) -> Response:
    """Show one group: its lag in each queue, its members and their subscriptions."""
    group, admin = ask.path("group"), ask.admin
    configs = await groups_of_brokers(admin, group, await admin.masters())
    members = await subscriptions_of(admin, group)
    if not configs and not members:
        raise NotFoundError(
            ask.t("group {group} does not exist", group=group), next_step=ask.t("the page Groups lists all groups")
        )
    progress = await progress_of(admin, group)
    ask.console.lag_history.note(group, progress.queues)
    retry = retry_topic(group)
    topics: dict[str, list[Any]] = {}
    for queue in progress.queues:
        topics.setdefault(queue.queue.topic, []).append(queue)
    names = sorted(topics, key=lambda topic: (topic == retry, topic))
    found = listing(names, ask.text("q"), ask.whole("page"))
    attributes = _attributes(configs)
    parent = next((value for name, value, _ in attributes if name == _BIND_TOPIC), "")
    return ask.page(
        "groups/state.html" if ask.is_part else "groups/group.html",
        group=group,
        configs=configs,
        attributes=attributes,
        parent=parent,
        lite_address=address_of,
        members=members,
        contradictions=contradictions(members),
        found=found,
        topics={topic: topics[topic] for topic in found.names},
        retry=retry,
        dead=dlq_topic(group),
        lag=None if parent and not topics else sum(one.lag for one in progress.queues if one.queue.topic != retry),
        most=max((one.lag for one in progress.queues), default=0),
        rate=progress.consume_tps,
    )


def _attributes(configs: dict[str, SubscriptionGroupConfig]) -> list[tuple[str, str, str]]:
    """Return the name and value of each attribute, and the names of the brokers that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for broker, config in configs.items():
        for name, value in attributes_of(config).items():
            found.setdefault((name, value), []).append(broker)
    return [(name, value, ", ".join(brokers)) for (name, value), brokers in sorted(found.items())]


async def history(ask: Ask) -> Response:
    """Return a group's lag over the last hour."""
    return JSONResponse(ask.console.lag_history.of(ask.path("group")))


async def show_member(ask: Ask) -> Response:
    """Show one member: its queues, its rates and, on request, its threads' stacks."""
    group, client_id = ask.path("group"), ask.path("client_id")
    stack = ask.text("stack") == "yes"
    info = await _running_info(ask, group, client_id, stack)
    return ask.page(
        "groups/member.html",
        group=group,
        client_id=client_id,
        info=info,
        stack=stack,
        queues=sorted(info.mq_table.items()),
        properties=sorted(info.properties.items()),
    )


async def _running_info(ask: Ask, group: str, client_id: str, stack: bool) -> ConsumerRunningInfo:
    failure: Exception | None = None
    for address in (await ask.admin.masters()).values():
        try:
            return await ask.admin.consumer_running_info(group, client_id, address, stack=stack)
        except (BrokerError, RemotingError) as error:
            failure = error
    raise failure or NotFoundError(ask.t("no broker has a member {name}", name=client_id))


# --- changes --------------------------------------------------------------------------------------
async def new_form(ask: Ask) -> Response:
    """Ask for the settings of a new group."""
    return ask.page("groups/new.html")


async def create(ask: Ask) -> Plan:
    """Create a group on every broker. Existing groups are not changed."""
    group = _group_name(ask, ask.text("group"))
    retries, queues = _retries(ask), _retry_queues(ask)
    wanted = SubscriptionGroupConfig(
        group_name=group,
        retry_max_times=16 if retries is None else retries,
        retry_queue_nums=1 if queues is None else queues,
    )
    masters = await ask.admin.masters()
    existing = await groups_of_brokers(ask.admin, group, masters)
    if existing:
        raise FormError(
            ask.t("group {group} already exists", group=group), next_step=ask.t("change it on its own page")
        )

    async def run() -> str:
        for address in masters.values():
            await ask.admin.create_group(wanted, broker_address=address)
        return ask.t("Group {group} is created.", group=group)

    return Plan(
        title=ask.t("Create group {group}", group=group),
        sentence=ask.t("The group is created on each of these brokers."),
        action=ask.t("Create it"),
        what="group.create",
        subject=group,
        run=run,
        then=address_of_group(group),
        back="/groups/new",
        table=Table(
            (ask.t("Broker"), ask.t("Redeliveries"), ask.t("Retry queues")),
            [(name, wanted.retry_max_times, wanted.retry_queue_nums) for name in masters],
        ),
        details={"retries": wanted.retry_max_times, "retry queues": wanted.retry_queue_nums},
    )


def _group_name(ask: Ask, name: str) -> str:
    wrong = check_group(name)
    if wrong is not None:
        raise FormError(ask.t("{name} is not a valid group name: {wrong}", name=name, wrong=wrong))
    return name


def _retries(ask: Ask) -> int | None:
    return ask.whole("retries", least=-1, most=MAX_RETRIES)


def _retry_queues(ask: Ask) -> int | None:
    return ask.whole("retry_queues", least=0, most=MAX_RETRY_QUEUES)


async def alter_form(ask: Ask) -> Response:
    """Ask for new settings of a group."""
    group = ask.path("group")
    existing = await groups_of_brokers(ask.admin, group, await ask.admin.masters())
    return ask.page("groups/alter.html", group=group, existing=existing)


async def alter(ask: Ask) -> Plan:
    """Change the given settings on every broker that has the group."""
    group = ask.path("group")
    consume = {"yes": True, "no": False}.get(ask.text("consume"))
    given = {"retry_max_times": _retries(ask), "retry_queue_nums": _retry_queues(ask), "consume_enable": consume}
    settings = {name: value for name, value in given.items() if value is not None}
    masters = await ask.admin.masters()
    existing = await groups_of_brokers(ask.admin, group, masters)
    wanted = {name: msgspec.structs.replace(config, **settings) for name, config in existing.items()}
    changes = [one for name in existing for one in differences(name, existing[name], wanted[name])]
    if not changes:
        raise FormError(ask.t("{group} already has these settings", group=group))

    async def run() -> str:
        for name in sorted({one.broker for one in changes}):
            await ask.admin.create_group(wanted[name], broker_address=masters[name])
        return ask.t("Group {group} is changed.", group=group)

    address = address_of_group(group)
    return Plan(
        title=ask.t("Change group {group}", group=group),
        sentence=ask.t("These settings change."),
        action=ask.t("Change it"),
        what="group.alter",
        subject=group,
        run=run,
        then=address,
        back=f"{address}/alter",
        table=changes_table(ask, changes),
        details={f"{one.broker} {one.setting}": f"{one.old} -> {one.new}" for one in changes},
    )


async def reset_form(ask: Ask) -> Response:
    """Ask for the new offsets of a group."""
    group = ask.path("group")
    await check_group_exists(ask.admin, group)
    progress = await progress_of(ask.admin, group)
    topics = sorted({one.queue.topic for one in progress.queues} - {retry_topic(group)})
    members = await members_of(ask.admin, group)
    return ask.page("groups/reset.html", group=group, topics=topics, members=members, topic=ask.text("topic"))


async def reset(ask: Ask) -> Plan:
    """Move a group's offsets in one topic. The plan shows the messages that are skipped or consumed again."""
    group, topic = ask.path("group"), ask.topic()
    target = _target(ask)
    moves = await planned_moves(ask.admin, group, topic, target)
    members = await members_of(ask.admin, group)
    force = ask.text("force") == "yes"
    warnings = []
    if members:
        warnings.append(
            ask.t(
                "{count} members are consuming. Stop them first, or choose to move running members, too.",
                count=len(members),
            )
        )
    skipped = sum(move.skipped or 0 for move in moves)
    again = sum(move.again or 0 for move in moves)

    async def run() -> str:
        await execute_moves(ask.admin, group, topic, moves, force_to_ms=target.timestamp_ms, force=force)
        return ask.t("Group {group} is reset in topic {topic}.", group=group, topic=topic)

    address = address_of_group(group)
    return Plan(
        title=ask.t("Reset group {group} in topic {topic}", group=group, topic=topic),
        sentence=ask.t(
            "{skipped} messages are skipped, {again} are consumed again.", skipped=f"{skipped:,}", again=f"{again:,}"
        ),
        action=ask.t("Move the offsets"),
        what="group.reset",
        subject=group,
        run=run,
        then=address,
        back=f"{address}/reset",
        warnings=warnings,
        typed=group if skipped else "",
        table=_moves_table(ask, moves),
        details={"topic": topic, "skipped": skipped, "again": again, "queues": len(moves)},
    )


def _moves_table(ask: Ask, moves: list[Move]) -> Table:
    titles = (ask.t("Broker"), ask.t("Queue"), ask.t("From"), ask.t("To"), ask.t("Skipped"), ask.t("Again"))
    rows = [
        (move.queue.broker_name, move.queue.queue_id, move.before, move.after, move.skipped, move.again)
        for move in moves
    ]
    return Table(titles, rows)


def _target(ask: Ask) -> Target:
    place = ask.text("to")
    if place == "earliest":
        return Target(EARLIEST)
    if place == "latest":
        return Target(LATEST)
    moment, offset, by = ask.moment("time"), ask.whole("offset"), ask.whole("by", least=-(2**62))
    if place == "time" and moment is not None:
        return Target(moment)
    if place == "offset" and offset is not None:
        return Target(offset=offset)
    if place == "by" and by is not None:
        return Target(by=by)
    raise FormError(ask.t("choose where to move the offsets"))


async def clone_form(ask: Ask) -> Response:
    """Ask for the name of a group's copy."""
    return ask.page("groups/clone.html", group=ask.path("group"))


async def clone(ask: Ask) -> Plan:
    """Create a group with the settings and offsets of another group."""
    group, copy = ask.path("group"), _group_name(ask, ask.text("copy"))
    masters = await ask.admin.masters()
    configs = await groups_of_brokers(ask.admin, group, masters)
    if not configs:
        raise NotFoundError(ask.t("group {group} does not exist", group=group))
    if await groups_of_brokers(ask.admin, copy, masters):
        raise FormError(ask.t("group {group} already exists", group=copy))
    queues = [one for one in (await progress_of(ask.admin, group)).queues if one.queue.topic != retry_topic(group)]

    async def run() -> str:
        for name, config in configs.items():
            await ask.admin.create_group(msgspec.structs.replace(config, group_name=copy), broker_address=masters[name])
        for one in queues:
            await ask.admin.offsets.commit(copy, one.queue, one.consumer_offset)
        return ask.t("Group {copy} starts at the offsets of {group}.", copy=copy, group=group)

    return Plan(
        title=ask.t("Clone group {group}", group=group),
        sentence=ask.t("{copy} gets the settings of {group} and starts at these offsets.", copy=copy, group=group),
        action=ask.t("Clone it"),
        what="group.clone",
        subject=group,
        run=run,
        then=address_of_group(copy),
        back=f"{address_of_group(group)}/clone",
        table=Table(
            (ask.t("Topic"), ask.t("Broker"), ask.t("Queue"), ask.t("Offset"), ask.t("Lag")),
            [
                (one.queue.topic, one.queue.broker_name, one.queue.queue_id, one.consumer_offset, one.lag)
                for one in queues
            ],
        ),
        details={"copy": copy, "queues": len(queues)},
    )


async def delete(ask: Ask) -> Plan:
    """Delete a group and its retry and dead-letter messages."""
    group = ask.path("group")
    members = await members_of(ask.admin, group)
    warnings = []
    if members:
        warnings.append(ask.t("{count} members are consuming. Stop them first.", count=len(members)))
    dead = 0
    with suppress(BrokerError, RemotingError, RouteNotFoundError):
        table = (await ask.admin.topic_stats(dlq_topic(group))).offset_table
        dead = sum(offsets.max_offset - offsets.min_offset for offsets in table.values())

    async def run() -> str:
        await delete_whole_group(ask.admin, group)
        return ask.t("Group {group} is deleted.", group=group)

    return Plan(
        title=ask.t("Delete group {group}", group=group),
        sentence=ask.t(
            "The group, its offsets, its retry messages and its {count} dead letters are deleted.", count=dead
        ),
        action=ask.t("Delete it"),
        what="group.delete",
        subject=group,
        run=run,
        then="/groups",
        back=address_of_group(group),
        warnings=warnings,
        typed=group,
        details={"dead messages": dead},
    )


ROUTES = (
    page("/groups", show_list),
    page("/groups/new", new_form),
    change("/groups/create", create),
    page("/groups/{group}", show_group),
    page("/groups/{group}/history", history),
    page("/groups/{group}/members/{client_id}", show_member),
    page("/groups/{group}/alter", alter_form),
    change("/groups/{group}/alter", alter),
    page("/groups/{group}/reset", reset_form),
    change("/groups/{group}/reset", reset),
    page("/groups/{group}/clone", clone_form),
    change("/groups/{group}/clone", clone),
    change("/groups/{group}/delete", delete),
)
