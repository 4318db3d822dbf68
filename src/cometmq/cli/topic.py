"""``cometmq topic``: list, create, describe and delete topics."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.fleet import Fleet, gathered, namesrv_option, on_fleet, unless
from cometmq.cli.moments import local_time
from cometmq.cli.output import Column, output_option, show, tell
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.names import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    RETRY_PREFIX,
    check_topic,
)
from cometmq.remoting.bodies import TopicRouteData, TopicStatsTable, decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
)

PERMISSIONS: Final = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE}
ROUTE_WAIT_SECONDS: Final = 5.0
"""A broker tells the nameservers of a new topic at once; slower than this something is wrong."""

_LIST: Final = (
    Column("topic", "Topic"),
    Column("brokers", "Brokers"),
    Column("read_queues", "Read queues", right=True),
    Column("write_queues", "Write queues", right=True),
    Column("permission", "Permission"),
)
_DESCRIBE: Final = (
    Column("broker", "Broker"),
    Column("cluster", "Cluster"),
    Column("read_queues", "Read queues", right=True),
    Column("write_queues", "Write queues", right=True),
    Column("permission", "Permission"),
    Column("messages", "Messages", right=True),
    Column("last_message", "Last message"),
)
_STATS: Final = (
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("min_offset", "Min offset", right=True),
    Column("max_offset", "Max offset", right=True),
    Column("messages", "Messages", right=True),
    Column("last_message", "Last message"),
)
_ROUTE: Final = (
    Column("broker", "Broker"),
    Column("cluster", "Cluster"),
    Column("broker_id", "Id", right=True),
    Column("address", "Address"),
)

_cluster_option = click.option("--cluster", help="Only on the brokers of this cluster.")
_broker_option = click.option("--broker", help="Only on this broker.")


@click.group("topic")
def command() -> None:
    """List, create, describe and delete topics."""


@command.command("list")
@click.option("--all", "everything", is_flag=True, help="Also system, retry and dead-letter topics.")
@namesrv_option
@output_option
def list_topics(everything: bool, namesrv: str, output: str) -> None:
    """List topics with their queues."""

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        names = await fleet.topics()
        if not everything:
            hidden = await fleet.system_topics()
            names = [
                name
                for name in names
                if name not in hidden and not name.startswith((RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_"))
            ]
        gone = (ResponseCode.TOPIC_NOT_EXIST,)
        routes = await gathered({name: unless(fleet.route(name), gone) for name in names})
        return [_list_row(name, route or TopicRouteData()) for name, route in routes.items()]

    show(on_fleet(namesrv, work), _LIST, output, title="Topics")


@command.command("create")
@click.argument("topic")
@click.option("--queues", type=click.IntRange(1, 65_535), default=8, show_default=True, help="Queues on each broker.")
@click.option("--permission", type=click.Choice(list(PERMISSIONS)), default="rw", show_default=True)
@click.option("--order", is_flag=True, help="Mark as an ordered topic.")
@_cluster_option
@_broker_option
@namesrv_option
def create(
    topic: str, queues: int, permission: str, order: bool, cluster: str | None, broker: str | None, namesrv: str
) -> None:
    """Create a topic on every broker, or change it where it exists."""
    _check(topic)
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERMISSIONS[permission],
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        order=order,
    )

    async def work(fleet: Fleet) -> None:
        masters = await fleet.masters(cluster=cluster, broker=broker)
        done: list[str] = []
        for name, address in masters.items():
            try:
                await fleet.ask(
                    address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, doing=f"creating topic {topic} on {name}"
                )
            except (BrokerError, RemotingError) as error:
                if done:
                    raise PartlyDoneError(
                        f"topic {topic} was created on {', '.join(done)}, not on {name}: {error.message}",
                        next_step="repeat the command once that broker is well; what exists stays as it is",
                    ) from error
                raise
            done.append(name)
        await _until_known(fleet, topic, set(done))
        tell(f"Topic {topic} with {queues} queues on {', '.join(done)}.")

    on_fleet(namesrv, work)


@command.command("delete")
@click.argument("topic")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@_cluster_option
@namesrv_option
def delete(topic: str, yes: bool, cluster: str | None, namesrv: str) -> None:
    """Delete a topic with all its messages."""
    _check(topic)
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUseError("deleting a topic deletes its messages", next_step="add --yes to confirm")
        click.confirm(f"Delete topic {topic} with all its messages?", abort=True, err=True)

    async def work(fleet: Fleet) -> None:
        await fleet.route(topic)
        for name, address in (await fleet.masters(cluster=cluster)).items():
            await fleet.ask(
                address,
                RequestCode.DELETE_TOPIC_IN_BROKER,
                DeleteTopicRequestHeader(topic),
                doing=f"deleting topic {topic} on {name}",
            )
        for address in fleet.namesrv:
            await fleet.ask(
                address,
                RequestCode.DELETE_TOPIC_IN_NAMESRV,
                DeleteTopicFromNamesrvRequestHeader(topic, cluster),
                doing=f"deleting topic {topic} at the nameserver",
            )
        tell(f"Topic {topic} is deleted.")

    on_fleet(namesrv, work)


@command.command("describe")
@click.argument("topic")
@namesrv_option
@output_option
def describe(topic: str, namesrv: str, output: str) -> None:
    """Show where a topic lives and how much it holds, broker by broker."""

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        route = await fleet.route(topic)
        stats = await _stats(fleet, topic)
        clusters = {data.broker_name: data.cluster for data in route.broker_datas}
        rows = []
        for queues in sorted(route.queue_datas, key=lambda queues: queues.broker_name):
            mine = [row for row in stats if row["broker"] == queues.broker_name]
            rows.append(
                {
                    "broker": queues.broker_name,
                    "cluster": clusters.get(queues.broker_name),
                    "read_queues": queues.read_queue_nums,
                    "write_queues": queues.write_queue_nums,
                    "permission": _permission(queues.perm),
                    "messages": sum(row["messages"] for row in mine),
                    "last_message": max((row["last_message"] or "" for row in mine), default=""),
                }
            )
        return rows

    show(on_fleet(namesrv, work), _DESCRIBE, output, title=f"Topic {topic}")


@command.command("stats")
@click.argument("topic")
@namesrv_option
@output_option
def stats(topic: str, namesrv: str, output: str) -> None:
    """Show the offsets of every queue of a topic."""
    show(on_fleet(namesrv, lambda fleet: _stats(fleet, topic)), _STATS, output, title=f"Queues of topic {topic}")


@command.command("route")
@click.argument("topic")
@namesrv_option
@output_option
def route_of(topic: str, namesrv: str, output: str) -> None:
    """Show the addresses of the brokers that hold a topic."""

    async def work(fleet: Fleet) -> list[dict[str, Any]]:
        route = await fleet.route(topic)
        return [
            {"broker": data.broker_name, "cluster": data.cluster, "broker_id": broker_id, "address": address}
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
            for broker_id, address in sorted(data.broker_addrs.items())
        ]

    show(on_fleet(namesrv, work), _ROUTE, output, title=f"Route of topic {topic}")


async def _stats(fleet: Fleet, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, address in (await fleet.masters_of(topic)).items():
        answer = await fleet.ask(
            address,
            RequestCode.GET_TOPIC_STATS_INFO,
            GetTopicStatsInfoRequestHeader(topic),
            doing=f"asking {name} about topic {topic}",
        )
        for queue, offsets in sorted(decode_body(TopicStatsTable, answer.body).offset_table.items()):
            rows.append(
                {
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "min_offset": offsets.min_offset,
                    "max_offset": offsets.max_offset,
                    "messages": offsets.max_offset - offsets.min_offset,
                    "last_message": local_time(offsets.last_update_timestamp),
                }
            )
    return rows


async def _until_known(fleet: Fleet, topic: str, brokers: set[str]) -> None:
    """Wait until the nameserver routes the topic to all of `brokers`, so that what follows finds it."""
    deadline = SYSTEM_CLOCK.monotonic() + ROUTE_WAIT_SECONDS
    while True:
        route = await unless(fleet.route(topic), (ResponseCode.TOPIC_NOT_EXIST,))
        if route is not None and brokers <= {queues.broker_name for queues in route.queue_datas}:
            return
        if SYSTEM_CLOCK.monotonic() > deadline:
            raise PartlyDoneError(
                f"topic {topic} is created, but the nameserver does not know it yet",
                next_step="it will within 30 s if the broker reaches the nameserver",
            )
        await SYSTEM_CLOCK.sleep(0.05)


def _list_row(name: str, route: TopicRouteData) -> dict[str, Any]:
    return {
        "topic": name,
        "brokers": sorted(queues.broker_name for queues in route.queue_datas),
        "read_queues": sum(queues.read_queue_nums for queues in route.queue_datas),
        "write_queues": sum(queues.write_queue_nums for queues in route.queue_datas),
        "permission": ", ".join(sorted({_permission(queues.perm) for queues in route.queue_datas})),
    }


def _permission(bits: int) -> str:
    letters = ((PERM_READ, "r"), (PERM_WRITE, "w"), (PERM_INHERIT, "i"))
    return "".join(letter for bit, letter in letters if bits & bit)


def _check(topic: str) -> None:
    wrong = check_topic(topic)
    if wrong is not None:
        raise WrongUseError(f"{topic!r} is no topic name: {wrong}")
