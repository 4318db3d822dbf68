"""Administration of CometMQ brokers' quotas."""

from __future__ import annotations

import msgspec

from cometmq.auth.quota.model import QuotaInfo
from cometmq.client.admin.accounts import AccountAdmin
from cometmq.remoting.admin_headers import DeleteQuotaRequestHeader, GetQuotasRequestHeader, PutQuotaRequestHeader
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode


class QuotaAdmin(AccountAdmin):
    """Manages quotas. Each broker has its own, so changes are sent to every broker, or to the one at ``address``."""

    async def put_quota(self, quota: PutQuotaRequestHeader, *, address: str | None = None) -> None:
        """Create or change a subject's quota: ``None`` leaves a limit unchanged, and -1 removes it."""
        for server in await self._servers(address):
            await self._call(server, RequestCode.PUT_QUOTA, quota, doing="setting the quota")

    async def delete_quota(self, subject: str, *, address: str | None = None) -> None:
        """Delete a subject's quota.

        :raises BrokerError: code 22: a broker has no quota for the subject.
        """
        header = DeleteQuotaRequestHeader(subject)
        for server in await self._servers(address):
            await self._call(server, RequestCode.DELETE_QUOTA, header, doing="deleting the quota")

    async def quotas(
        self, subject: str | None = None, *, each: bool = False, address: str | None = None
    ) -> dict[str, list[QuotaInfo]]:
        """Return quotas by broker address: all quotas, one subject's, or those of every metered subject (``each``).

        :raises BrokerError: code 22: the subject has no quota.
        """
        header = GetQuotasRequestHeader(subject, each)
        found: dict[str, list[QuotaInfo]] = {}
        for server in await self._servers(address):
            body = await self._call(server, RequestCode.GET_QUOTAS, header, doing="requesting the quotas")
            try:
                found[server] = msgspec.json.decode(body, type=list[QuotaInfo])
            except msgspec.MsgspecError as error:
                raise BodyError(f"invalid list of quotas: {error}") from error
        return found
