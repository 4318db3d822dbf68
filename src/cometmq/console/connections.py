"""The console's connections to its cluster for one account."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cometmq.client.admin import Admin
from cometmq.client.instance import ClientInstance
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.console.limits import ASK_SECONDS
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.security import Security


class Connections:
    """Connections that requests from many pages share. They are opened when needed.

    :param security: the account that all connections use.
    """

    def __init__(self, namesrv: str, security: Security, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.security = security
        self._namesrv = namesrv
        self._clock = clock
        self._instance: ClientInstance | None = None

    @property
    def instance(self) -> ClientInstance:
        """Return the client instance for the console's producers and consumers. This object owns the instance."""
        if self._instance is None:
            self._instance = ClientInstance(self._namesrv, security=self.security, clock=self._clock)
            self._instance.acquire()
        return self._instance

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """Return the administration client for one page. It skips brokers that do not answer, and lists them in
        ``unanswered``.
        """
        admin = Admin(instance=self.instance, timeout_s=ASK_SECONDS)
        silent: dict[str, RemotingError] = {}
        admin.unanswered = silent
        async with admin:
            yield admin

    async def close(self) -> None:
        """Close all connections."""
        instance, self._instance = self._instance, None
        if instance is not None:
            await instance.release()
