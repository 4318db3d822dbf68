"""The topic of a load: made for it and deleted after it, unless the user names one."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cometmq.bench.plan import BenchError
from cometmq.client.admin import Admin
from cometmq.client.errors import RouteNotFoundError

PREFIX: Final = "bench-"


@asynccontextmanager
async def bench_topic(admin: Admin, named: str | None, *, queues: int, into_existing: bool) -> AsyncIterator[str]:
    """Give the block a topic to write to. One that is made here is deleted at the end, unless it was named.

    :param named: name of the topic; ``None`` for one of its own.
    :param into_existing: the named topic may exist already.
    :raises BenchError: it exists already.
    """
    topic = named or f"{PREFIX}{secrets.token_hex(6)}"
    exists = named is not None and await _exists(admin, topic)
    if exists and not into_existing:
        raise BenchError(
            f"topic {topic} exists, and its consumers would get the messages of the load",
            next_step="name no topic, then one is made and deleted; or add --into-existing",
        )
    if not exists:
        await admin.create_topic(topic, queues=queues)
    try:
        yield topic
    finally:
        if named is None:
            await admin.delete_topic(topic)


async def stored(admin: Admin, topic: str) -> int:
    """Return the messages that a topic has ever had: the sum of the ends of its queues."""
    return sum(offsets.max_offset for offsets in (await admin.topic_stats(topic)).offset_table.values())


async def _exists(admin: Admin, topic: str) -> bool:
    try:
        await admin.topic_route(topic)
    except RouteNotFoundError:
        return False
    return True
