"""The pages about lite topics: those of a parent topic, one of them, the groups and clients that read them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

from starlette.responses import Response

from cometmq.client.admin import Admin
from cometmq.client.admin.lite.requests import LitePage, LitePlace
from cometmq.client.admin.members import members_of
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError
from cometmq.console.limits import PAGE_ROWS
from cometmq.console.page import Ask, FormError, NotFoundError, Plan, Table, change, page
from cometmq.console.rendering import time_element
from cometmq.message.lite_names import check_lite_topic
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.lite.bodies import (
    ClientGroup,
    GetLiteTopicInfoResponseBody,
    GetParentTopicInfoResponseBody,
)

T = TypeVar("T")

_MAX_GROUPS: Final = 20
"""Maximum number of groups whose lags a page requests. For the sum of a group's lags, a broker looks at all of its lite
topics.
"""
_MAX_CLIENTS: Final = 200
"""Maximum number of clients, or of a client's lite topics, on a page."""
_MAX_NAME_CHARS: Final = 512


@dataclass(frozen=True)
class LagLine:
    """The messages on one broker that a group has not consumed. Values that are not known are ``None``."""

    group: str
    broker: str
    lite_topic: str
    consumed_to: int | None
    lag: int
    since_ms: int


# --- the lite topics of a parent topic ------------------------------------------------------------
async def show_parent(ask: Ask) -> Response:
    """Show a parent topic: its lite topics whose names begin with a text, and the groups that read them."""
    topic, prefix = ask.path("topic"), _raw(ask, "q")
    parents = await _parents(ask, topic)
    found = await _page(ask, topic, prefix)
    groups = _groups_of(parents)
    lags: dict[str, tuple[int, int] | None] = {}
    if not ask.is_part:
        lags = await gathered({group: _total_lag(ask.admin, topic, group) for group in groups[:_MAX_GROUPS]})
    return ask.page(
        "lite_topics/rows.html" if ask.is_part else "lite_topics/parent.html",
        topic=topic,
        prefix=prefix,
        count=sum(info.lite_topic_count for info in parents.values()),
        minutes=sorted({info.ttl for info in parents.values()}),
        groups=groups,
        lags=lags,
        found=found,
        address=address_of,
    )


def address_of(topic: str, part: str = "", /, **values: str) -> str:
    """Return the address of a page about a parent topic's lite topics."""
    path = f"/topics/{quote(topic, safe='')}/lite" + (f"/{part}" if part else "")
    return f"{path}?{urlencode(values)}" if values else path


async def _parents(ask: Ask, topic: str) -> Mapping[str, GetParentTopicInfoResponseBody]:
    try:
        return await ask.admin.lite_parent(topic)
    except BrokerError as error:
        if error.code != ResponseCode.INVALID_PARAMETER:
            raise
        raise NotFoundError(
            ask.t("topic {topic} has no lite topics", topic=topic),
            next_step=ask.t("only topics of the type LITE have lite topics"),
        ) from error


def _groups_of(parents: Mapping[str, GetParentTopicInfoResponseBody]) -> list[str]:
    return sorted({group for info in parents.values() for group in info.groups})


async def _page(ask: Ask, topic: str, prefix: str) -> LitePage | None:
    """Return a page of lite topics, or ``None`` if a broker cannot list them."""
    broker, position = ask.text("broker"), ask.whole("position")
    start = LitePlace(broker, position) if broker and position is not None else None
    try:
        return await ask.admin.lite_page(topic, prefix=prefix, start=start, limit=PAGE_ROWS)
    except BrokerError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return None


async def _total_lag(admin: Admin, topic: str, group: str) -> tuple[int, int] | None:
    """Return the number of messages that a group has not consumed, and the store time of the first of them."""
    try:
        infos = (await admin.lite_lag(topic, group, top=0)).values()
    except BrokerError:  # the group was deleted, or the visitor may not read it
        return None
    times = [info.earliest_unconsumed_timestamp for info in infos if info.earliest_unconsumed_timestamp > 0]
    return sum(max(info.total_lag_count, 0) for info in infos), min(times, default=0)


def _raw(ask: Ask, name: str) -> str:
    """Return a field with its surrounding blanks, which are allowed in names of lite topics.

    :raises FormError: the field is too long.
    """
    value = ask.form.get(name) or ask.request.query_params.get(name) or ""
    if not isinstance(value, str) or len(value) > _MAX_NAME_CHARS:
        raise FormError(ask.t("{name} has more than {longest} characters", name=name, longest=_MAX_NAME_CHARS))
    return value


# --- one lite topic -------------------------------------------------------------------------------
async def show_one(ask: Ask) -> Response:
    """Show one lite topic: its offsets on each broker, the lag of each group, and its clients."""
    topic, name = ask.path("topic"), _name(ask)
    parents = await _parents(ask, topic)
    infos = await _existing(ask, topic, name)
    groups = _groups_of(parents)
    lags = await _lags_of(ask.admin, topic, name, groups[:_MAX_GROUPS])
    clients = _clients_of(infos)
    return ask.page(
        "lite_topics/lite_topic.html",
        topic=topic,
        name=name,
        infos=infos,
        expires={broker: _expires_ms(parents.get(broker), info) for broker, info in infos.items()},
        lags=lags,
        more_groups=len(groups) - _MAX_GROUPS,
        clients=clients[:_MAX_CLIENTS],
        more_clients=len(clients) - _MAX_CLIENTS,
        address=address_of,
    )


def _name(ask: Ask) -> str:
    name = _raw(ask, "name")
    wrong = check_lite_topic(name)
    if wrong is not None:
        raise FormError(ask.t("{name} is not a valid name of a lite topic: {wrong}", name=name, wrong=wrong))
    return name


async def _existing(ask: Ask, topic: str, name: str) -> dict[str, GetLiteTopicInfoResponseBody]:
    """Return what each broker that has the lite topic knows about it.

    :raises NotFoundError: no broker has it.
    """
    infos = await ask.admin.lite_topic(topic, name)
    found = {
        broker: info
        for broker, info in infos.items()
        if info.subscriber or (info.topic_offset is not None and info.topic_offset.max_offset)
    }
    if not found:
        raise NotFoundError(
            ask.t("no broker has messages or clients of lite topic {name}", name=name),
            next_step=ask.t("it may have expired; the page of topic {topic} lists the others", topic=topic),
        )
    return found


def _expires_ms(parent: GetParentTopicInfoResponseBody | None, info: GetLiteTopicInfoResponseBody) -> int | None:
    """Return the time from which a lite topic without clients may be removed, or ``None`` for never."""
    last = 0 if info.topic_offset is None else info.topic_offset.last_update_timestamp
    return None if parent is None or parent.ttl <= 0 or last <= 0 else last + parent.ttl * 60_000


def _clients_of(infos: Mapping[str, GetLiteTopicInfoResponseBody]) -> list[ClientGroup]:
    clients = {(client.group, client.client_id): client for info in infos.values() for client in info.subscriber}
    return [clients[key] for key in sorted(clients)]


async def _lags_of(admin: Admin, topic: str, name: str, groups: list[str]) -> list[LagLine]:
    """Return the lag of each group in one lite topic, on each broker that has messages."""

    async def lines(group: str) -> list[LagLine]:
        try:
            infos = await admin.lite_lag(topic, group, name, top=0)
        except BrokerError:  # as for _total_lag
            return []
        return [
            LagLine(
                *(group, broker, name),
                None if info.lite_topic_offset_wrapper is None else info.lite_topic_offset_wrapper.consumer_offset,
                *(info.total_lag_count, info.earliest_unconsumed_timestamp),
            )
            for broker, info in infos.items()
            if info.total_lag_count >= 0
        ]

    found = await gathered({group: lines(group) for group in groups})
    return [line for lines_of_group in found.values() for line in lines_of_group]


# --- the groups and clients that read lite topics -------------------------------------------------
async def show_group(ask: Ask) -> Response:
    """Show a group that reads lite topics: those in which it lags most, and its clients."""
    topic, group = ask.path("topic"), ask.text("group")
    infos = await _of_group(ask, group, ask.admin.lite_lag(topic, group, top=PAGE_ROWS))
    if any(info.parent_topic != topic for info in infos.values()):
        raise _reads_none(ask, group)
    lags, oldest = list[LagLine](), list[LagLine]()
    for broker, info in infos.items():
        for lines, found in ((lags, info.lag_count_top_k), (oldest, info.lag_timestamp_top_k)):
            lines += [
                LagLine(group, broker, one.lite_topic, None, one.lag_count, one.earliest_unconsumed_timestamp)
                for one in found
            ]
    members = await members_of(ask.admin, group)
    return ask.page(
        "lite_topics/group.html",
        topic=topic,
        group=group,
        total=sum(max(info.total_lag_count, 0) for info in infos.values()),
        since=min((line.since_ms for line in oldest if line.since_ms > 0), default=0),
        lags=sorted(lags, key=lambda line: -line.lag)[:PAGE_ROWS],
        oldest=sorted(oldest, key=lambda line: line.since_ms)[:PAGE_ROWS],
        members=members[:_MAX_CLIENTS],
        more_members=len(members) - _MAX_CLIENTS,
        address=address_of,
    )


async def _of_group(ask: Ask, group: str, asking: Awaitable[dict[str, T]]) -> dict[str, T]:
    """Await what brokers know about a group.

    :raises NotFoundError: the group does not exist, or reads no lite topics of this parent topic.
    """
    try:
        return await asking
    except BrokerError as error:
        if error.code not in (ResponseCode.INVALID_PARAMETER, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            raise
        raise _reads_none(ask, group) from error


def _reads_none(ask: Ask, group: str) -> NotFoundError:
    return NotFoundError(
        ask.t("group {group} reads no lite topics of this topic", group=group),
        next_step=ask.t("its attribute lite.bind.topic says which topic it reads"),
    )


async def show_client(ask: Ask) -> Response:
    """Show one client: the lite topics to which it subscribes, and its last pops."""
    topic, group, client = ask.path("topic"), ask.text("group"), _raw(ask, "client")
    infos = await _of_group(ask, group, ask.admin.lite_client(topic, group, client, max_names=_MAX_CLIENTS))
    known = {broker: info for broker, info in infos.items() if info.lite_topic_count >= 0}
    if not known:
        raise NotFoundError(
            ask.t("no broker knows the client {name} of group {group}", name=client, group=group),
            next_step=ask.t("it may have ended, or it has not subscribed yet"),
        )
    names = sorted((name, broker) for broker, info in known.items() for name in info.lite_topic_set)
    return ask.page(
        "lite_topics/client.html",
        topic=topic,
        group=group,
        client=client,
        known=known,
        count=sum(info.lite_topic_count for info in known.values()),
        names=names[:_MAX_CLIENTS],
        address=address_of,
    )


# --- changes --------------------------------------------------------------------------------------
async def expire(ask: Ask) -> Plan:
    """Remove one lite topic, without waiting for its expiration."""
    topic, name = ask.path("topic"), _name(ask)
    infos = await _existing(ask, topic, name)
    groups = _groups_of(await _parents(ask, topic))
    lags = await _lags_of(ask.admin, topic, name, groups[:_MAX_GROUPS])
    unread = sum(line.lag for line in lags)
    messages = {broker: _messages_of(info) for broker, info in infos.items()}
    is_unread = unread > 0 or (not groups and any(messages.values()))
    clients = _clients_of(infos)
    warnings = []
    if clients:
        warnings.append(
            ask.t("Clients subscribe to it ({count}). While they do, brokers keep it.", count=f"{len(clients):,}")
        )
    if is_unread:
        warnings.append(ask.t("Groups have not read all of its messages. They will never receive the others."))

    async def run() -> str:
        answers = (await ask.admin.expire_lite_topics(topic, name, with_unread=is_unread)).values()
        if any(answer.read for answer in answers):
            raise FormError(
                ask.t("lite topic {name} was kept: a client reads it, or holds messages of it", name=name),
                next_step=ask.t("end its clients, or unsubscribe them, and try again"),
            )
        if any(answer.unread for answer in answers):
            raise FormError(
                ask.t("lite topic {name} was kept: a group has not read all of its messages", name=name),
                next_step=ask.t("preview the removal again, or use cometmq topic lite expire --with-unread"),
            )
        return ask.t("Lite topic {name} is removed.", name=name)

    here = address_of(topic, "topic", name=name)
    return Plan(
        title=ask.t("Remove lite topic {name}", name=name),
        sentence=ask.t("Groups cannot read its messages any more. They remain in topic {topic}.", topic=topic),
        action=ask.t("Remove it"),
        what="lite_topic.expire",
        subject=f"{topic} {name}",
        run=run,
        then=address_of(topic),
        back=here,
        warnings=warnings,
        typed=name if is_unread else "",
        table=Table(
            (ask.t("Broker"), ask.t("Messages"), ask.t("Last message"), ask.t("Clients")),
            [
                (broker, messages[broker], time_element(_last_ms(info), ask.zone), len(info.subscriber))
                for broker, info in infos.items()
            ],
        ),
        details={"messages": sum(messages.values()), "unread": unread, "clients": len(clients)},
    )


def _messages_of(info: GetLiteTopicInfoResponseBody) -> int:
    offsets = info.topic_offset
    return 0 if offsets is None else offsets.max_offset - offsets.min_offset


def _last_ms(info: GetLiteTopicInfoResponseBody) -> int:
    return 0 if info.topic_offset is None else info.topic_offset.last_update_timestamp


ROUTES = (
    page("/topics/{topic}/lite", show_parent),
    page("/topics/{topic}/lite/topic", show_one),
    page("/topics/{topic}/lite/group", show_group),
    page("/topics/{topic}/lite/client", show_client),
    change("/topics/{topic}/lite/expire", expire),
)
