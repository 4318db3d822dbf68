"""Logins with the cluster's accounts (ACL 1.0 and 2.0)."""

from __future__ import annotations

import secrets
from dataclasses import replace

from cometmq.client.admin import Admin
from cometmq.client.errors import AccessDeniedError, ClientError
from cometmq.client.instance import ClientInstance
from cometmq.clock import Clock
from cometmq.console.limits import ASK_SECONDS
from cometmq.remoting.errors import is_unknown_caller
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials


class ClusterAccounts:
    """Checks credentials with a signed request to a broker.

    A cluster without access control accepts any signature. So a successful request with a real account proves something
    only if a request with an invented account is denied.
    """

    def __init__(self, namesrv: str, security: Security, clock: Clock) -> None:
        self._namesrv = namesrv
        self._security = security
        self._clock = clock

    async def are_on(self) -> bool:
        """Return True if brokers check signatures.

        :raises CometMQError: no broker answers.
        """
        invented = Credentials(f"console-{secrets.token_hex(8)}", secrets.token_hex(16))
        return not await self._accepts(invented)

    async def accept(self, access_key: str, secret_key: str) -> bool:
        """Return True if the credentials are valid. The cluster must check credentials.

        :raises CometMQError: no broker answers.
        """
        return await self.are_on() and await self._accepts(Credentials(access_key, secret_key))

    async def _accepts(self, credentials: Credentials) -> bool:
        security = replace(self._security, credentials=credentials)
        instance = ClientInstance(self._namesrv, security=security, clock=self._clock)
        async with Admin(instance=instance, timeout_s=ASK_SECONDS) as admin:
            try:
                masters = await admin.masters()
                if not masters:
                    raise ClientError("no broker is registered that could check the account")
                await admin.runtime_info(next(iter(masters.values())))
            except AccessDeniedError as error:
                return not is_unknown_caller(error.remark)
        return True
