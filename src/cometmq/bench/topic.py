"""The topic for a load. Unless the user names a topic, one is created for the load and deleted afterwards."""

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
    """Provide a topic for a load. If no name is given, create one and delete it at the end.

    :param named: name of the topic, or ``None`` for a temporary topic.
    :param into_existing: allow a topic that already exists.
    :raises BenchError: the topic already exists.
    """
    topic = named or f"{PREFIX}{secrets.token_hex(6)}"
    exists = named is not None and await _exists(admin, topic)
    if exists and not into_existing:
        raise BenchError(
            f"topic {topic} already exists, and its consumers would receive the load's messages",
            next_step="omit the topic to use a temporary one, or add --into-existing",
        )
    if not exists:
        await admin.create_topic(topic, queues=queues)
    try:
        yield topic
    finally:
        if named is None:
            await admin.delete_topic(topic)


async def stored(admin: Admin, topic: str) -> int:
    """Return the number of messages that have ever been stored in a topic: the sum of its queues' end offsets."""
    return sum(offsets.max_offset for offsets in (await admin.topic_stats(topic)).offset_table.values())


async def _exists(admin: Admin, topic: str) -> bool:
    try:
        await admin.topic_route(topic)
    except RouteNotFoundError:
        return False
    return True
