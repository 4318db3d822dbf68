"""Summaries of consumer groups, and deletion of groups with their retry and dead-letter topics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cometmq.client.admin import Admin, ConsumeProgress
from cometmq.client.admin.group_progress import groups_with_members, progress_of_groups
from cometmq.client.admin.members import check_group_exists, connection_of, members_of
from cometmq.client.admin.reset import GroupConsumesError
from cometmq.client.admin.several import asked_masters, gathered
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.message.names import dlq_topic, is_system_group, retry_topic
from cometmq.quantity import quantity
from cometmq.remoting.admin_bodies import ConsumerConnection
from cometmq.remoting.codes import ResponseCode


@dataclass(frozen=True)
class GroupSummary:
    """A summary of a consumer group."""

    group: str
    members: int
    topics: list[str]
    """The group's topics, excluding its retry topic."""
    lag: int
    """Number of messages in these topics that have not been consumed yet."""
    model: str | None
    """``clustering`` or ``broadcasting``; ``None`` if the group has no members."""


async def users_groups(admin: Admin) -> list[str]:
    """Return the consumer groups, excluding those of servers and tools."""
    return [name for name in await admin.groups() if not is_system_group(name)]


async def summaries_of(admin: Admin, groups: Sequence[str]) -> dict[str, GroupSummary]:
    """Return a summary of each group.

    CometMQ brokers are asked for sums, and about the members of the groups that have any. Apache's
    brokers are asked for the queues and members of every group.
    """
    sums = (await asked_masters(admin, lambda _, address: progress_of_groups(admin, address, groups))).values()
    connections = await gathered(
        {group: connection_of(admin, group) for group in groups_with_members(groups, sums, least=1)}
    )
    lags: dict[str, dict[str, int]] = {group: {} for group in groups}
    for at_broker in sums:
        for group, found in at_broker.items():
            for topic, progress in found.topics.items():
                lags[group][topic] = lags[group].get(topic, 0) + progress.lag
    return {group: _summary(group, connections.get(group, ConsumerConnection()), lags[group]) for group in groups}


def _summary(group: str, found: ConsumerConnection, lags: Mapping[str, int]) -> GroupSummary:
    retry = retry_topic(group)
    return GroupSummary(
        group=group,
        members=len(found.connection_set),
        topics=sorted((found.subscription_table.keys() | lags.keys()) - {retry}),
        lag=sum(lag for topic, lag in lags.items() if topic != retry),
        model=(found.message_model or "").lower() or None,
    )


async def progress_of(admin: Admin, group: str, topic: str | None = None) -> ConsumeProgress:
    """Return a group's progress; it is empty if the group has never consumed."""
    try:
        return await admin.consume_progress(group, topic)
    except (BrokerError, RouteNotFoundError) as error:
        if topic is None and error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return ConsumeProgress(group, (), 0.0)
        raise


async def delete_whole_group(admin: Admin, group: str, *, keep_offsets: bool = False) -> None:
    """Delete a group together with its retry and dead-letter topics.

    :raises ClientError: the group does not exist.
    :raises GroupConsumesError: members are consuming.
    """
    await check_no_members(admin, group)
    await admin.delete_group(group, remove_offsets=not keep_offsets)
    for topic in own_topics(group):
        if topic in await admin.topics():
            await admin.delete_topic(topic)


async def check_no_members(admin: Admin, group: str) -> None:
    """Check that a group exists and has no members.

    :raises ClientError: the group does not exist.
    :raises GroupConsumesError: members are consuming.
    """
    await check_group_exists(admin, group)
    members = await members_of(admin, group)
    if members:
        raise GroupConsumesError(
            f"group {group} has {quantity(len(members), 'active member')} ({', '.join(members)}); nothing was deleted",
            next_step="stop the members and repeat the command",
        )


def own_topics(group: str) -> tuple[str, str]:
    """Return the names of a group's retry topic and dead-letter topic."""
    return retry_topic(group), dlq_topic(group)
