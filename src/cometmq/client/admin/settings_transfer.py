"""Exports a cluster's settings, and imports them after a preview of the changes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from cometmq.auth.policies import PolicyInfo
from cometmq.auth.quota.model import Limits
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.client.admin.settings_file import Document, GroupEntry, PolicyEntry, QuotaEntry, TopicEntry
from cometmq.client.admin.several import gathered, users_topics
from cometmq.client.admin.topic_settings import PERMISSIONS, attribute_change, permission_text
from cometmq.client.errors import BrokerError
from cometmq.errors import CometMQError
from cometmq.message.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS
from cometmq.remoting.admin_headers import PutQuotaRequestHeader
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import ResponseCode

E = TypeVar("E", TopicEntry, GroupEntry)
T = TypeVar("T")
_ALL: Final = "all"
_READ_WRITE: Final = PERMISSIONS["rw"]


class ImportRefusedError(CometMQError):
    """A settings document does not fit the cluster. Nothing was changed."""


async def export_settings(admin: Admin) -> Document:
    """Return a cluster's topics, groups, policies and quotas, excluding system, retry and dead-letter topics."""
    masters = await admin.masters()
    mine = set(await users_topics(admin))
    topics = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    groups = await gathered({name: admin.groups(address) for name, address in masters.items()})
    return Document(
        topics=_merged(
            {
                broker: {name: _topic_entry(config) for name, config in table.items() if name in mine}
                for broker, table in topics.items()
            }
        ),
        groups=_merged(
            {
                broker: {name: _group_entry(config) for name, config in table.items() if not _is_system_group(name)}
                for broker, table in groups.items()
            }
        ),
        policies=await _answer_if_supported(_policies(admin)),
        quotas=await _answer_if_supported(_quotas(admin)),
    )


@dataclass(frozen=True)
class _Step:
    """A change on one broker or on all brokers, with the request that applies it."""

    changes: tuple[Change, ...]
    make: Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Import:
    """The differences between a settings document and a cluster; :meth:`execute` applies them."""

    steps: tuple[_Step, ...]

    @property
    def changes(self) -> list[Change]:
        """Return the changes in the order in which they are applied."""
        return [change for step in self.steps for change in step.changes]

    async def execute(self, done: Callable[[int], None] = lambda _: None) -> None:
        """Apply the changes in groups, and call ``done`` with the size of each group.

        :raises CometMQError: a change failed; earlier changes are applied, and the import can be repeated.
        """
        for step in self.steps:
            await step.make()
            done(len(step.changes))


async def plan_import(admin: Admin, document: Document, *, hide_messages: bool = False) -> Import:
    """Compare a document with the cluster. Settings that are not in the document remain unchanged.

    :param hide_messages: allow the removal of read queues with messages.
    :raises ImportRefusedError: the document names an unknown broker or user, needs policies or quotas that the servers
        do not support, or would hide messages.
    """
    masters = await admin.masters()
    steps = [
        *await _topic_steps(admin, document, masters, hide_messages=hide_messages),
        *await _group_steps(admin, document, masters),
        *await _policy_steps(admin, document),
        *await _quota_steps(admin, document),
    ]
    return Import(tuple(steps))


# --- topics and groups -----------------------------------------------------------------------------


async def _topic_steps(
    admin: Admin, document: Document, masters: Mapping[str, str], *, hide_messages: bool
) -> list[_Step]:
    existing = await gathered({name: admin.topic_configs(address) for name, address in masters.items()})
    steps: list[_Step] = []
    for entry in document.topics:
        for broker in _brokers(entry, masters):
            old = existing[broker].get(entry.name)
            before = None if old is None else _topic_entry(old)
            changes = _differences(broker, f"topic {entry.name}", before, entry)
            if not changes:
                continue
            if old is not None and entry.read_queues < old.read_queue_nums and not hide_messages:
                await _check_empty(admin, entry, broker, masters[broker])
            config = msgspec.structs.replace(
                old or TopicConfig(topic_name=entry.name),
                read_queue_nums=entry.read_queues,
                write_queue_nums=entry.write_queues,
                perm=(old.perm & ~_READ_WRITE if old is not None else 0) | PERMISSIONS.get(entry.permission, 0),
                order=entry.order,
            )
            change = attribute_change((old.attributes if old is not None else None) or {}, entry.attributes)
            steps.append(
                _Step(changes, partial(admin.put_topic, config, masters[broker], attribute_change=change)),
            )
    return steps


async def _check_empty(admin: Admin, entry: TopicEntry, broker: str, address: str) -> None:
    """Check that the queues that become unreadable contain no messages.

    :raises ImportRefusedError: a queue has messages.
    """
    table = (await admin.topic_stats_of(entry.name, address)).offset_table
    full = [
        queue.queue_id
        for queue, offsets in sorted(table.items())
        if queue.queue_id >= entry.read_queues and offsets.max_offset > offsets.min_offset
    ]
    if full:
        raise ImportRefusedError(
            f"topic {entry.name} on {broker} would have {entry.read_queues} read queues, but there are messages in "
            f"queues {', '.join(map(str, full[:20]))}; nothing was changed",
            next_step="reduce the number of write queues first and let consumers finish, or add --hide-messages",
        )


async def _group_steps(admin: Admin, document: Document, masters: Mapping[str, str]) -> list[_Step]:
    existing = await gathered({name: admin.groups(address) for name, address in masters.items()})
    steps: list[_Step] = []
    for entry in document.groups:
        for broker in _brokers(entry, masters):
            old = existing[broker].get(entry.name)
            before = None if old is None else _group_entry(old)
            changes = _differences(broker, f"group {entry.name}", before, entry)
            if not changes:
                continue
            config = msgspec.structs.replace(
                old or SubscriptionGroupConfig(group_name=entry.name),
                retry_max_times=entry.max_retries,
                retry_queue_nums=entry.retry_queues,
                consume_enable=entry.consume,
                consume_broadcast_enable=entry.consume_broadcast,
                consume_from_min_enable=entry.consume_from_min,
                consume_message_orderly=entry.consume_orderly or UNSET,
                consume_timeout_minute=UNSET
                if entry.consume_timeout_minutes is None
                else entry.consume_timeout_minutes,
                group_retry_policy=UNSET if entry.retry_policy is None else entry.retry_policy,
                group_sys_flag=entry.system_flag or UNSET,
                attributes=entry.attributes or UNSET,
            )
            steps.append(
                _Step(changes, lambda config=config, to=masters[broker]: admin.create_group(config, broker_address=to))  # type: ignore[misc]
            )
    return steps


def _brokers(entry: TopicEntry | GroupEntry, masters: Mapping[str, str]) -> Iterable[str]:
    """Return the brokers to which an entry applies.

    :raises ImportRefusedError: a broker is not in the cluster.
    """
    for broker in entry.brokers or ():
        if broker not in masters:
            raise ImportRefusedError(
                f"{entry.name} is for broker {broker}, but the cluster has {', '.join(masters) or 'none'}; "
                "nothing was changed",
                next_step="start that broker, or remove its name from the document",
            )
    return masters if entry.brokers is None else entry.brokers


def _differences(
    broker: str, what: str, old: TopicEntry | GroupEntry | None, new: TopicEntry | GroupEntry
) -> tuple[Change, ...]:
    wanted = _settings(new)
    if old is None:
        return (Change(broker, what, None, ", ".join(f"{name} {value}" for name, value in wanted.items())),)
    had = _settings(old)
    return tuple(
        Change(broker, f"{what}: {name}", had[name], value) for name, value in wanted.items() if had[name] != value
    )


def _settings(entry: TopicEntry | GroupEntry) -> dict[str, Any]:
    names = (field for field in entry.__struct_fields__ if field not in ("name", "brokers"))
    return {name: _format_value(getattr(entry, name)) for name in names}


def _format_value(value: Any) -> Any:
    return ", ".join(f"{name}={one}" for name, one in value.items()) or None if isinstance(value, dict) else value


def _merged(tables: Mapping[str, Mapping[str, E]]) -> list[E]:
    """Return one entry for each name and setting. It lists its brokers only if the setting differs between brokers."""
    found: dict[str, list[E]] = {}
    places: dict[tuple[str, int], list[str]] = {}
    for broker, table in tables.items():
        for name, entry in table.items():
            known = found.setdefault(name, [])
            if entry not in known:
                known.append(entry)
            places.setdefault((name, known.index(entry)), []).append(broker)
    return [
        entry if len(places[(name, index)]) == len(tables) else _with_brokers(entry, places[(name, index)])
        for name in sorted(found)
        for index, entry in enumerate(found[name])
    ]


def _with_brokers(entry: E, brokers: list[str]) -> E:
    return msgspec.structs.replace(entry, brokers=brokers)


def _topic_entry(config: TopicConfig) -> TopicEntry:
    return TopicEntry(
        name=config.topic_name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permission=permission_text(config.perm & _READ_WRITE),
        order=config.order,
        attributes=config.attributes or {},
    )


def _group_entry(config: SubscriptionGroupConfig) -> GroupEntry:
    return GroupEntry(
        name=config.group_name,
        max_retries=config.retry_max_times,
        retry_queues=config.retry_queue_nums,
        consume=config.consume_enable,
        consume_broadcast=config.consume_broadcast_enable,
        consume_from_min=config.consume_from_min_enable,
        consume_orderly=config.consume_message_orderly is True,
        consume_timeout_minutes=None if config.consume_timeout_minute is UNSET else config.consume_timeout_minute,
        retry_policy=None if config.group_retry_policy is UNSET else config.group_retry_policy,
        system_flag=0 if config.group_sys_flag is UNSET else config.group_sys_flag,
        attributes={} if config.attributes is UNSET else config.attributes,
    )


def _is_system_group(name: str) -> bool:
    return name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX)


# --- policies and quotas ---------------------------------------------------------------------------


async def _policies(admin: Admin) -> list[PolicyEntry]:
    return [
        PolicyEntry(
            user=(info.subject or "").removeprefix("User:"),
            resource=entry.resource or "",
            actions=list(entry.actions or ()),
            decision=entry.decision or "",
            source_ips=list(entry.source_ips or ()),
            type=policy.policy_type or "Custom",
        )
        for info in await admin.policies()
        for policy in info.policies or ()
        for entry in policy.entries or ()
    ]


async def _policy_steps(admin: Admin, document: Document) -> list[_Step]:
    if not document.policies:
        return []
    there = await _answer_if_supported(_policies(admin))
    if there is None:
        raise ImportRefusedError(
            "the document has policies, but the servers do not use them; nothing was changed",
            next_step="set authenticationEnabled=true on the servers, or remove the policies from the document",
        )
    users = {user.username for user in await admin.users()}
    had = {(entry.user, entry.type, entry.resource): entry for entry in there}
    steps: list[_Step] = []
    for entry in document.policies:
        if entry.user not in users:
            raise ImportRefusedError(
                f"user {entry.user} does not exist; nothing was changed",
                next_step=f"run cometmq user create {entry.user}; documents contain no passwords",
            )
        old = had.get((entry.user, entry.type, entry.resource))
        if old is not None and _policy_text(old) == _policy_text(entry):
            continue
        change = Change(
            _ALL, f"{entry.user}: {entry.resource}", None if old is None else _policy_text(old), _policy_text(entry)
        )
        policies = [PolicyInfo(entry.type, [entry.info()])]
        steps.append(
            _Step((change,), lambda user=entry.user, policies=policies: admin.put_policies(user, policies))  # type: ignore[misc]
        )
    return steps


def _policy_text(entry: PolicyEntry) -> str:
    source = f" from {', '.join(sorted(entry.source_ips))}" if entry.source_ips else ""
    return f"{entry.decision} {', '.join(sorted(entry.actions))}{source}"


async def _quotas(admin: Admin) -> list[QuotaEntry]:
    found = {
        info.subject: QuotaEntry(subject=info.subject, limits=info.limits)
        for infos in (await admin.quotas()).values()
        for info in infos
    }
    return [found[subject] for subject in sorted(found)]


async def _quota_steps(admin: Admin, document: Document) -> list[_Step]:
    if not document.quotas:
        return []
    there = await _answer_if_supported(admin.quotas())
    if there is None:
        raise ImportRefusedError(
            "the document has quotas, but only CometMQ brokers support them; nothing was changed",
            next_step="remove the quotas from the document",
        )
    steps: list[_Step] = []
    for entry in document.quotas:
        wanted = Limits.given(entry.limits)
        for address, infos in there.items():
            had = next((Limits.given(info.limits) for info in infos if info.subject == entry.subject), {})
            changes = tuple(
                Change(address, f"quota {entry.subject}: {name}", had.get(name), wanted.get(name))
                for name in dict.fromkeys((*had, *wanted))
                if had.get(name) != wanted.get(name)
            )
            if changes:
                limits = {
                    field: -1 if amount is None else amount for field, amount in _all_limits(entry.limits).items()
                }
                header = PutQuotaRequestHeader(entry.subject, **limits)
                steps.append(
                    _Step(changes, lambda header=header, to=address: admin.put_quota(header, address=to))  # type: ignore[misc]
                )
    return steps


def _all_limits(limits: Limits) -> dict[str, int]:
    """Return a value for every kind of limit; a limit that the quota does not have is -1, which removes the limit."""
    return {name: -1 if (most := getattr(limits, name)) is None else most for name in limits.__struct_fields__}


async def _answer_if_supported(asking: Awaitable[T]) -> T | None:
    """Return a response, or ``None`` if the servers do not support the request."""
    try:
        return await asking
    except BrokerError as error:
        if error.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR):
            return None
        raise
