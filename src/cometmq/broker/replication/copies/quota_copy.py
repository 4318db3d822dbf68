"""The members of a set copy their master's quotas, also those that were set while a member was down."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from cometmq.auth.limits import MAX_QUOTAS
from cometmq.auth.model import AuthError
from cometmq.auth.quota.model import Limits, QuotaInfo, Subject
from cometmq.auth.quota.table import QuotaTable
from cometmq.broker.limits import SLAVE_TABLE_SECONDS
from cometmq.broker.replication.frames import ReplicationError
from cometmq.remoting.admin_headers import GetQuotasRequestHeader
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_rows: Final = msgspec.json.Decoder(list[QuotaInfo])


class QuotaCopy:
    """Replaces one member's quotas by its master's."""

    def __init__(self, table: QuotaTable, client: RemotingClient) -> None:
        self._table = table
        self._client = client

    async def copy(self, master: str) -> None:
        """Copy the quotas if they differ.

        :raises ReplicationError: the master does not return them, or they cannot be used or written.
        :raises RemotingError: the master does not answer.
        """
        request = GetQuotasRequestHeader()
        answer = await self._client.invoke(master, RequestCode.GET_QUOTAS, request, timeout_s=SLAVE_TABLE_SECONDS)
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"GET_QUOTAS: code {answer.code}, {answer.remark}")
        try:
            found = _limits(answer.body)
            async with self._table.lock:
                if found != self._table.limits:
                    await in_thread(self._table.save, found)
                    self._table.use(found)
                    _log.info("the quotas were copied from master %s", master)
        except (AuthError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ReplicationError(f"the master's quotas cannot be used: {error}") from error


def _limits(body: bytes) -> dict[Subject, Limits]:
    rows = _rows.decode(body)
    if len(rows) > MAX_QUOTAS:
        raise AuthError(f"{len(rows)} quotas are more than {MAX_QUOTAS:,}")
    for row in rows:
        row.limits.check()
    return {Subject.parse(row.subject): row.limits for row in rows}
