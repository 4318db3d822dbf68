"""``cometmq group``: consumer groups, their members and how far they are."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
import msgspec

from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.fleet import Fleet, gathered, namesrv_option, on_fleet, unless
from cometmq.cli.moments import Moment, local_time
from cometmq.cli.output import Column, output_option, show, tell
from cometmq.cli.reset import EARLIEST, LATEST, reset_group
from cometmq.message.names import check_group, dlq_topic, retry_topic
from cometmq.remoting.bodies import (
    ConsumerConnection,
    ConsumeStats,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    decode_body,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumeStatsRequestHeader,
)

_LIST: Final = (
    Column("group", "Group"),
    Column("members", "Members", right=True),
    Column("topics", "Topics"),
    Column("lag", "Lag", right=True),
    Column("model", "Model"),
)
_MEMBERS: Final = (
    Column("client_id", "Client"),
    Column("address", "Address"),
    Column("language", "Language"),
    Column("version", "Version", right=True),
    Column("subscriptions", "Subscriptions"),
)
_OFFSETS: Final = (
    Column("topic", "Topic"),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("consumer_offset", "Consumed to", right=True),
    Column("broker_offset", "Stored to", right=True),
    Column("lag", "Lag", right=True),
    Column("last_consumed", "Last consumed message"),
)


@click.group("group")
def command() -> None:
    """List and describe consumer groups, show and reset their offsets."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also groups that every broker has.")
@namesrv_option
@output_option
def list_groups(everything: bool, namesrv: str, output: str) -> None:
    """List groups with their members and how far behind they are."""
    from cometmq.broker.groups import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        names: set[str] = set()
        for name, address in (await fleet.masters()).items():
            answer = await fleet.ask(
                address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, doing=f"listing the groups of {name}"
            )
            names.update(decode_body(SubscriptionGroupWrapper, answer.body).subscription_group_table)
        if not everything:
            names = {name for name in names if name not in SYSTEM_GROUPS and not name.startswith(SYSTEM_GROUP_PREFIX)}
        rows = await gathered({name: _list_row(fleet, name) for name in sorted(names)})
        return list(rows.values())

    show(on_fleet(namesrv, work), _LIST, output, title="Consumer groups")


@command.command("create")
@click.argument("group")
@click.option("--max-retries", type=click.IntRange(-1, 1000), default=16, show_default=True)
@click.option("--retry-queues", type=click.IntRange(0, 64), default=1, show_default=True)
@click.option("--cluster", help="Only on the brokers of this cluster.")
@namesrv_option
def create(group: str, max_retries: int, retry_queues: int, cluster: str | None, namesrv: str) -> None:
    """Create a group on every broker, or change it where it exists."""
    _check(group)
    config = SubscriptionGroupConfig(group_name=group, retry_max_times=max_retries, retry_queue_nums=retry_queues)

    async def work(fleet: Fleet) -> None:
        masters = await fleet.masters(cluster=cluster)
        for name, address in masters.items():
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await fleet.ask(address, code, None, encode_body(config), doing=f"creating group {group} on {name}")
        tell(f"Group {group} on {', '.join(masters)}.")

    on_fleet(namesrv, work)


@command.command("delete")
@click.argument("group")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--keep-offsets", is_flag=True, help="Keep how far the group was.")
@namesrv_option
def delete(group: str, yes: bool, keep_offsets: bool, namesrv: str) -> None:
    """Delete a group with its retry and dead-letter topics."""
    _check(group)
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUseError("deleting a group deletes its retried and dead messages", next_step="add --yes")
        click.confirm(f"Delete group {group} with its retry and dead-letter topics?", abort=True, err=True)

    async def work(fleet: Fleet) -> None:
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offset=not keep_offsets)
        for name, address in (await fleet.masters()).items():
            await fleet.ask(
                address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header, doing=f"deleting group {group} on {name}"
            )
            for topic in (retry_topic(group), dlq_topic(group)):
                await fleet.ask(
                    address,
                    RequestCode.DELETE_TOPIC_IN_BROKER,
                    DeleteTopicRequestHeader(topic),
                    doing=f"deleting topic {topic} on {name}",
                )
        for address in fleet.namesrv:
            for topic in (retry_topic(group), dlq_topic(group)):
                await fleet.ask(
                    address,
                    RequestCode.DELETE_TOPIC_IN_NAMESRV,
                    DeleteTopicFromNamesrvRequestHeader(topic),
                    doing=f"deleting topic {topic} at the nameserver",
                )
        tell(f"Group {group} is deleted.")

    on_fleet(namesrv, work)


@command.command("describe")
@click.argument("group")
@namesrv_option
@output_option
def describe(group: str, namesrv: str, output: str) -> None:
    """Show the members of a group and what they subscribe to."""

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        found = await _connections(fleet, group)
        texts = [f"{item.topic}:{item.sub_string or '*'}" for item in found.subscription_table.values()]
        return [
            {
                "client_id": member.client_id,
                "address": member.client_addr,
                "language": member.language,
                "version": member.version,
                "subscriptions": sorted(texts),
            }
            for member in sorted(found.connection_set, key=lambda member: member.client_id)
        ]

    show(on_fleet(namesrv, work), _MEMBERS, output, title=f"Members of group {group}")


@command.command("offsets")
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@namesrv_option
@output_option
def offsets(group: str, topic: str | None, namesrv: str, output: str) -> None:
    """Show how far a group is in every queue."""

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        stats = await _consume_stats(fleet, group, topic)
        return [
            {
                "topic": queue.topic,
                "broker": queue.broker_name,
                "queue_id": queue.queue_id,
                "consumer_offset": state.consumer_offset,
                "broker_offset": state.broker_offset,
                "lag": max(0, state.broker_offset - max(0, state.consumer_offset)),
                "last_consumed": local_time(state.last_timestamp),
            }
            for queue, state in sorted(stats.offset_table.items())
        ]

    show(on_fleet(namesrv, work), _OFFSETS, output, title=f"Offsets of group {group}")


@command.command("reset")
@click.argument("group")
@click.option("--topic", required=True, help="The topic to reset.")
@click.option("--earliest", "to", flag_value=EARLIEST, type=int, help="To the first message kept.")
@click.option("--latest", "to", flag_value=LATEST, type=int, help="Past the last message.")
@click.option("--time", "moment", type=Moment(), help="To the first message stored at or after this time.")
@namesrv_option
def reset(group: str, topic: str, to: int | None, moment: int | None, namesrv: str) -> None:
    """Move a group to another place in a topic, whether it is consuming now or not."""
    _check(group)
    if (to is None) == (moment is None):
        raise WrongUseError("say where to reset to: one of --earliest, --latest, --time")
    timestamp = to if to is not None else moment
    assert timestamp is not None

    async def work(fleet: Fleet) -> None:
        done, failed = await reset_group(fleet, group, topic, timestamp)
        if failed:
            raise PartlyDoneError(
                f"group {group} was reset in {done} queues, not on {', '.join(failed)}",
                next_step="repeat the command once those brokers are well",
            )
        tell(f"Group {group} is reset in {done} queues of topic {topic}.")

    on_fleet(namesrv, work)


async def _list_row(fleet: Fleet, group: str) -> dict[str, Any]:
    found = await _connections(fleet, group)
    stats = await _consume_stats(fleet, group, None)
    lag = sum(
        max(0, state.broker_offset - max(0, state.consumer_offset))
        for queue, state in stats.offset_table.items()
        if queue.topic != retry_topic(group)
    )
    topics = set(found.subscription_table) | {queue.topic for queue in stats.offset_table}
    return {
        "group": group,
        "members": len(found.connection_set),
        "topics": sorted(topics - {retry_topic(group)}),
        "lag": lag,
        "model": (found.message_model or "").lower(),
    }


async def _connections(fleet: Fleet, group: str) -> ConsumerConnection:
    """Who consumes as a group, from the first broker that a member is connected to."""
    header = GetConsumerConnectionListRequestHeader(group)
    nobody = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
    for name, address in (await fleet.masters()).items():
        answer = await unless(
            fleet.ask(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, header, doing=f"asking {name} for group {group}"
            ),
            nobody,
        )
        if answer is not None:
            return decode_body(ConsumerConnection, answer.body)
    return ConsumerConnection()


async def _consume_stats(fleet: Fleet, group: str, topic: str | None) -> ConsumeStats:
    """How far a group is on all brokers; empty for a group that never consumed."""
    total = ConsumeStats()
    merged = dict(total.offset_table)
    tps = 0.0
    nothing = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    for name, address in (await fleet.masters()).items():
        answer = await unless(
            fleet.ask(
                address,
                RequestCode.GET_CONSUME_STATS,
                GetConsumeStatsRequestHeader(group, topic),
                doing=f"asking {name} how far group {group} is",
            ),
            nothing,
        )
        if answer is not None:
            stats = decode_body(ConsumeStats, answer.body)
            merged.update(stats.offset_table)
            tps += stats.consume_tps
    return msgspec.structs.replace(total, offset_table=merged, consume_tps=tps)


def _check(group: str) -> None:
    wrong = check_group(group)
    if wrong is not None:
        raise WrongUseError(f"{group!r} is no group name: {wrong}")
