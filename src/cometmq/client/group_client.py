"""The common base of producers and consumers: group, instance, trace and ``async with``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self

from cometmq.client.instance import ClientInstance
from cometmq.client.own_loop import OwnLoop
from cometmq.client.own_process import refuse_copies
from cometmq.client.send.config import ClientConfig
from cometmq.client.trace.dispatcher import MessageTrace
from cometmq.client.use import Use
from cometmq.message.names import check_group
from cometmq.remoting.security import Security


class GroupClient(OwnLoop):
    """A client that belongs to a group.

    :param instance: connections to share with other clients; by default it creates its own.
    :param security: credentials and TLS settings of its own instance; by default from the environment.
    :param client_id: the id of its own instance; by default a unique id.
    :raises ValueError: the group's name is not allowed, an address has no port, or a shared instance gets security.
    """

    __reduce_ex__ = refuse_copies

    instance: ClientInstance
    """The connections, routes and heartbeats that the client uses."""
    trace: MessageTrace | None = None
    """This client's trace, if ``enable_msg_trace`` is set."""
    _ending: asyncio.Task[None] | None = None
    """The task that closes the client."""

    def __init__(
        self,
        group: str,
        namesrv: str | None,
        instance: ClientInstance | None,
        security: Security | None,
        *,
        client_id: str | None = None,
    ) -> None:
        wrong = check_group(group)
        if wrong is not None:
            raise ValueError(wrong)
        self.group = group
        self.instance = ClientInstance.given_or_new(instance, namesrv, security, client_id=client_id)
        name = f"{type(self).__name__} of group {group}"
        self._use = Use(self, self.instance, name, owns=instance is None)

    def _begin_trace(self, kind: str, config: ClientConfig) -> MessageTrace | None:
        """Create the trace if the configuration enables it; ``kind`` is PRODUCE or CONSUME."""
        if config.enable_msg_trace:
            self.trace = MessageTrace(self.instance, self.group, kind, config.customized_trace_topic)
        return self.trace

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Prepare the client for use."""
        raise NotImplementedError

    async def close(self) -> None:
        """Finish the client's work and close the client."""
        raise NotImplementedError

    async def _end_once(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``end`` once. Further calls wait for it, and it continues even if a call is cancelled."""
        if self._ending is None:
            self._ending = asyncio.get_running_loop().create_task(end())
        await asyncio.shield(self._ending)
