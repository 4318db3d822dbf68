"""Click types for names of topics, groups and brokers, which shells can complete by querying the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from cometmq.client.admin import Admin
from cometmq.client.admin.group_summary import users_groups
from cometmq.client.admin.several import users_topics
from cometmq.client.route import DEFAULT_NAMESRV
from cometmq.message.queue_names import topic_spelled

COMPLETION_SECONDS: Final = 2.0
"""Maximum duration of a completion. If it takes longer, no names are shown."""


class Name(click.ParamType[str]):
    """A click type for names in the cluster. ``ask`` lists the existing names."""

    name = "text"

    def __init__(self, ask: Callable[[Admin], Awaitable[Iterable[str]]]) -> None:
        self._ask = ask

    def shell_complete(self, ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with ``incomplete``, or no names if the cluster does not answer in time."""
        namesrv: Any = ctx.params.get("namesrv") or DEFAULT_NAMESRV

        async def names() -> Iterable[str]:
            async with asyncio.timeout(COMPLETION_SECONDS), Admin(namesrv, timeout_s=COMPLETION_SECONDS) as admin:
                return await self._ask(admin)

        try:
            found = asyncio.run(names())
        except Exception:  # an error message would disturb the line that the user is typing
            return []
        return [CompletionItem(name) for name in sorted(found) if name.startswith(incomplete)]


class TopicName(Name):
    """A click type for topics, and for queues of other tools such as Celery in their own spelling."""

    def convert(self, value: str, _param: click.Parameter | None, _ctx: click.Context | None) -> str:
        """Return the topic that the user means."""
        return topic_spelled(value)


TOPIC: Final = TopicName(users_topics)
TOPIC_TO_WRITE: Final = Name(users_topics)
"""A topic that may be created by a command that writes to it: a mistyped name must not become a queue's topic."""
GROUP: Final = Name(users_groups)
BROKER: Final = Name(Admin.masters)
