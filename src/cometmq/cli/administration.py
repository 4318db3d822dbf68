"""What the administration commands share: the ``-n`` option, and a short-lived :class:`Admin`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import click

from cometmq.cli.failures import WrongUseError
from cometmq.cli.places import DEFAULT_NAMESRV, NAMESRV_VARIABLE
from cometmq.client.admin import Admin
from cometmq.client.errors import RemotingConnectError
from cometmq.client.route import namesrv_addresses
from cometmq.errors import CometMQError
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, check_group, check_topic, reply_topic

T = TypeVar("T")
K = TypeVar("K")

ASKED_AT_ONCE: Final = 64
"""Requests in flight of one command; spares brokers that have thousands of topics."""


def _checked_addresses(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    try:
        namesrv_addresses(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


namesrv_option = click.option(
    "-n",
    "--namesrv",
    envvar=NAMESRV_VARIABLE,
    default=DEFAULT_NAMESRV,
    show_default=True,
    metavar="HOST:PORT[;…]",
    callback=_checked_addresses,
    help=f"Nameservers; also from ${NAMESRV_VARIABLE}.",
)
"""The ``-n`` of every command that talks to a running CometMQ or RocketMQ."""


def administer(namesrv: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run the work of one command and close every connection after it.

    :raises CometMQError: among others when no nameserver can be reached.
    """

    async def run() -> T:
        async with Admin(namesrv) as admin:
            return await work(admin)

    try:
        return asyncio.run(run())
    except RemotingConnectError as error:
        raise explained(error, namesrv) from error


def explained(error: RemotingConnectError, namesrv: str) -> CometMQError:
    """Say of a failed connection whether the nameserver or a broker is missing."""
    if error.address in namesrv_addresses(namesrv):
        return CometMQError(
            f"no nameserver at {namesrv}", next_step="start one with cometmq serve, or name another with -n HOST:PORT"
        )
    return error


async def gathered(work: Mapping[K, Awaitable[T]]) -> dict[K, T]:
    """Wait for many answers, only so many at once, and keep them by their keys."""
    room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(waiting: Awaitable[T]) -> T:
        async with room:
            return await waiting

    return dict(zip(work, await asyncio.gather(*(one(waiting) for waiting in work.values())), strict=True))


async def users_topics(admin: Admin) -> list[str]:
    """All topics but RocketMQ's own, those named as brokers and clusters, and those of retries."""
    info = await admin.cluster_info()
    hidden = SYSTEM_TOPICS | info.broker_addr_table.keys() | info.cluster_addr_table.keys()
    hidden |= {reply_topic(cluster) for cluster in info.cluster_addr_table}
    inner = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_")
    return [name for name in await admin.topics() if name not in hidden and not name.startswith(inner)]


def demand_topic_name(topic: str) -> None:
    """Refuse what is no name of a topic.

    :raises WrongUseError: with RocketMQ's words.
    """
    wrong = check_topic(topic)
    if wrong is not None:
        raise WrongUseError(f"{topic!r} is no topic name: {wrong}")


def demand_group_name(group: str) -> None:
    """Refuse what is no name of a group.

    :raises WrongUseError: with RocketMQ's words.
    """
    wrong = check_group(group)
    if wrong is not None:
        raise WrongUseError(f"{group!r} is no group name: {wrong}")


def confirm_deletion(what: str, consequence: str) -> None:
    """Ask before something is deleted.

    :raises WrongUseError: nobody is there to answer, so ``--yes`` has to.
    :raises CometMQError: the answer was no.
    """
    if not sys.stdin.isatty():
        raise WrongUseError(f"deleting {what} {consequence}", next_step="add --yes to confirm")
    if not click.confirm(f"Deleting {what} {consequence}. Go on?", err=True):
        raise CometMQError("nothing was deleted")
