"""What the administration commands ask: nameservers for routes and clusters, masters for everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Final, TypeVar

import click

from cometmq.cli.places import DEFAULT_NAMESRV, NAMESRV_VARIABLE
from cometmq.client.errors import BrokerError, RemotingConnectError
from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.message.names import MASTER_ID, SYSTEM_TOPICS
from cometmq.remoting.bodies import ClusterInfo, TopicList, TopicRouteData, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import GetRouteInfoRequestHeader, Header

T = TypeVar("T")
K = TypeVar("K")

ASKED_AT_ONCE: Final = 64
"""Requests in flight of one command; spares brokers that have thousands of topics."""

namesrv_option = click.option(
    "-n",
    "--namesrv",
    envvar=NAMESRV_VARIABLE,
    default=DEFAULT_NAMESRV,
    show_default=True,
    metavar="HOST:PORT[;…]",
    help=f"Nameservers; also from ${NAMESRV_VARIABLE}.",
)
"""The ``-n`` of every command that talks to a running CometMQ or RocketMQ."""


class NoSuchBrokerError(CometMQError):
    """No nameserver knows a broker, or a cluster, of that name."""


class Fleet:
    """All clusters behind the nameservers given, for one command."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._clusters: ClusterInfo | None = None

    async def ask(
        self, address: str, code: int, header: Header | None = None, body: bytes = b"", *, doing: str
    ) -> RemotingCommand:
        """Ask one server for something that must succeed; see :meth:`ClientInstance.call`."""
        return await self._instance.call(address, code, header, body, doing=doing)

    async def ask_namesrv(self, code: int, header: Header | None = None, *, doing: str) -> RemotingCommand:
        """Ask the first nameserver that can be reached."""
        unreachable: RemotingConnectError | None = None
        for address in self.namesrv:
            try:
                return await self.ask(address, code, header, doing=doing)
            except RemotingConnectError as error:
                unreachable = error
        assert unreachable is not None
        raise CometMQError(
            f"no nameserver at {' or '.join(self.namesrv)}",
            next_step="start one with cometmq serve, or name another with -n HOST:PORT",
        ) from unreachable

    @property
    def namesrv(self) -> tuple[str, ...]:
        """The addresses of the nameservers."""
        return self._instance.routes.namesrv

    async def clusters(self) -> ClusterInfo:
        """All brokers and clusters; asked once."""
        if self._clusters is None:
            answer = await self.ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, doing="asking for the clusters")
            self._clusters = decode_body(ClusterInfo, answer.body)
        return self._clusters

    async def masters(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """Names and addresses of the masters; of one cluster or one broker only where asked.

        :raises NoSuchBrokerError: there is none.
        """
        info = await self.clusters()
        found = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs
            and (cluster is None or data.cluster == cluster)
            and (broker is None or name == broker)
        }
        if not found:
            what = f"broker {broker}" if broker else f"cluster {cluster}" if cluster else "broker"
            known = ", ".join(sorted(info.broker_addr_table if broker else info.cluster_addr_table)) or "none"
            raise NoSuchBrokerError(
                f"the nameserver knows no {what}",
                next_step=f"it knows {known}" if broker or cluster else "start one with cometmq broker -n ADDRESS",
            )
        return found

    async def route(self, topic: str) -> TopicRouteData:
        """Where a topic lives.

        :raises BrokerError: code 17, no nameserver knows the topic.
        """
        header = GetRouteInfoRequestHeader(topic)
        answer = await self.ask_namesrv(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, header, doing=f"asking for the route of topic {topic}"
        )
        return decode_body(TopicRouteData, answer.body)

    async def masters_of(self, topic: str) -> dict[str, str]:
        """Names and addresses of the masters that hold a topic."""
        route = await self.route(topic)
        return {
            data.broker_name: data.broker_addrs[MASTER_ID]
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
            if MASTER_ID in data.broker_addrs
        }

    async def topics(self) -> list[str]:
        """All topics, sorted."""
        answer = await self.ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, doing="listing the topics")
        return sorted(decode_body(TopicList, answer.body).topic_list)

    async def system_topics(self) -> frozenset[str]:
        """Topics that every cluster has: RocketMQ's own, and those named as brokers and clusters."""
        info = await self.clusters()
        return SYSTEM_TOPICS | frozenset(info.broker_addr_table) | frozenset(info.cluster_addr_table)


def on_fleet(namesrv: str, work: Callable[[Fleet], Awaitable[T]]) -> T:
    """Run the work of one command and close every connection after it."""

    async def run() -> T:
        try:
            instance = ClientInstance(namesrv)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write it as host:port", param_hint="-n") from None
        async with instance:
            return await work(Fleet(instance))

    return asyncio.run(run())


async def gathered(work: Mapping[K, Awaitable[T]]) -> dict[K, T]:
    """Wait for many answers, only so many at once, and keep them by their keys."""
    room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(waiting: Awaitable[T]) -> T:
        async with room:
            return await waiting

    return dict(zip(work, await asyncio.gather(*(one(waiting) for waiting in work.values())), strict=True))


async def unless(waiting: Awaitable[T], codes: Container[int | None]) -> T | None:
    """Wait for an answer; None when the server refuses with one of `codes`, which mean that there is nothing."""
    try:
        return await waiting
    except BrokerError as error:
        if error.code in codes:
            return None
        raise
