"""Administration of the quotas of CometMQ brokers."""

from __future__ import annotations

import msgspec

from cometmq.auth.quota.model import QuotaInfo
from cometmq.client.admin.accounts import AccountAdmin
from cometmq.remoting.admin_headers import DeleteQuotaRequestHeader, GetQuotasRequestHeader, PutQuotaRequestHeader
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode


class QuotaAdmin(AccountAdmin):
    """Manages quotas. Each broker has its own, so a change is sent to every broker, or to the broker at ``address``."""

    async def put_quota(self, quota: PutQuotaRequestHeader, *, address: str | None = None) -> None:
        """Create or change the quota of a subject: a limit of ``None`` remains unchanged, and -1 removes the limit."""
        for server in await self._servers(address):
            await self._call(server, RequestCode.PUT_QUOTA, quota, doing="setting the quota")

    async def delete_quota(self, subject: str, *, address: str | None = None) -> None:
        """Delete the quota of a subject.

        :raises BrokerError: code 22: a broker has no quota for the subject.
        """
        header = DeleteQuotaRequestHeader(subject)
        for server in await self._servers(address):
            await self._call(server, RequestCode.DELETE_QUOTA, header, doing="deleting the quota")

    async def quotas(
        self, subject: str | None = None, *, each: bool = False, address: str | None = None
    ) -> dict[str, list[QuotaInfo]]:
        """Return quotas by broker address: all, one subject's, or, with ``each``, those of every subject with a meter.

        :raises BrokerError: code 22: the subject has no quota.
        """
        header = GetQuotasRequestHeader(subject, each)
        found: dict[str, list[QuotaInfo]] = {}
        for server in await self._servers(address):
            body = await self._call(server, RequestCode.GET_QUOTAS, header, doing="asking for the quotas")
            try:
                found[server] = msgspec.json.decode(body, type=list[QuotaInfo])
            except msgspec.MsgspecError as error:
                raise BodyError(f"a list of quotas: {error}") from error
        return found
