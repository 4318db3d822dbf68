"""Parallel requests for several brokers, topics or groups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.errors import ClientError
from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, reply_topic
from cometmq.remoting.errors import RemotingError

T = TypeVar("T")
K = TypeVar("K")

ASKED_AT_ONCE: Final = 64
"""Maximum number of requests in flight for a command or page, to protect brokers with thousands of topics."""


async def gathered(work: Mapping[K, Awaitable[T]]) -> dict[K, T]:
    """Await many responses, up to :data:`ASKED_AT_ONCE` at a time; return the responses by key."""
    room = asyncio.Semaphore(ASKED_AT_ONCE)

    async def one(waiting: Awaitable[T]) -> T:
        async with room:
            return await waiting

    return dict(zip(work, await asyncio.gather(*(one(waiting) for waiting in work.values())), strict=True))


async def answered(admin: Admin, work: Mapping[K, Awaitable[T]]) -> dict[K, T]:
    """Await responses like :func:`gathered`; servers that do not respond are added to ``admin.unanswered``, if set."""

    async def one(waiting: Awaitable[T]) -> tuple[T] | None:
        try:
            return (await waiting,)
        except RemotingError as error:
            if admin.unanswered is None:
                raise
            admin.unanswered[error.address] = error
            return None

    answers = await gathered({key: one(waiting) for key, waiting in work.items()})
    return {key: answer[0] for key, answer in answers.items() if answer is not None}


async def asked_masters(admin: Admin, ask: Callable[[str, str], Awaitable[T]]) -> dict[str, T]:
    """Call ``ask(name, address)`` for every master; return the responses by name, as :func:`answered` does."""
    return await answered(admin, {name: ask(name, address) for name, address in (await admin.masters()).items()})


async def users_topics(admin: Admin) -> list[str]:
    """Return all topics except retry, dead-letter and system topics."""
    info = await admin.cluster_info()
    hidden = SYSTEM_TOPICS | info.broker_addr_table.keys() | info.cluster_addr_table.keys()
    hidden |= {reply_topic(cluster) for cluster in info.cluster_addr_table}
    inner = (RETRY_PREFIX, DLQ_PREFIX, "rmq_sys_", "RMQ_SYS_")
    return [name for name in await admin.topics() if name not in hidden and not name.startswith(inner)]


async def chosen_masters(admin: Admin, cluster: str | None, broker: str | None) -> dict[str, str]:
    """Return the names and addresses of all masters, or of the masters of one cluster or broker.

    :raises ClientError: the nameserver knows no such master.
    """
    masters = await admin.masters(cluster)
    chosen = {name: address for name, address in masters.items() if broker in (None, name)}
    if not chosen:
        what = f"broker {broker}" if broker else f"cluster {cluster}" if cluster else "broker"
        known = f"it knows {', '.join(masters)}" if masters else "start one with cometmq broker -n ADDRESS"
        raise ClientError(f"the nameserver does not know {what}", next_step=known)
    return chosen
