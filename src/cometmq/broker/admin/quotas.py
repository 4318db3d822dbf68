"""Administration of quotas: request codes 30050 to 30052."""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from cometmq.auth.model import AuthError
from cometmq.auth.quota.limiter import Limiter
from cometmq.auth.quota.model import Limits, Subject
from cometmq.remoting.admin_headers import DeleteQuotaRequestHeader, GetQuotasRequestHeader, PutQuotaRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_NO_LIMIT: Final = -1


class QuotaAdmin:
    """Reads and changes quotas, one change at a time; a thread writes the file."""

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._table = limiter.table

    @answers(RequestCode.PUT_QUOTA, limits=("MAX_QUOTAS",), permission=needs_cluster(Action.UPDATE))
    async def put(
        self, connection: ServerConnection, request: Request[PutQuotaRequestHeader], _body: bytes
    ) -> Response:
        """Create or change a subject's quota. The change is durable and in effect when the request is answered."""
        try:
            subject = Subject.parse(request.header.subject)
            async with self._table.lock:
                limits = self._merged(subject, request.header)
                await self._use(subject, limits)
        except AuthError as error:
            return _refused(error)
        _log.info("%s set the quota of %s: %s", connection.remote_address, subject, limits.given())
        return Response()

    def _merged(self, subject: Subject, header: PutQuotaRequestHeader) -> Limits:
        quota = self._table.quotas.get(subject)
        merged = {} if quota is None else quota.limits.given()
        given = msgspec.to_builtins(header)
        for field in msgspec.structs.fields(Limits):
            value = given.get(field.encode_name)
            if value == _NO_LIMIT:
                merged.pop(field.encode_name, None)
            elif value is not None:
                merged[field.encode_name] = value
        if not merged:
            raise AuthError("a quota must have at least one limit", next_step="set a limit, or delete the quota")
        limits = msgspec.convert(merged, Limits)
        limits.check()
        return limits

    @answers(RequestCode.DELETE_QUOTA, permission=needs_cluster(Action.UPDATE))
    async def delete(
        self, connection: ServerConnection, request: Request[DeleteQuotaRequestHeader], _body: bytes
    ) -> Response:
        """Delete a subject's quota; the response code is 22 if the subject has none."""
        try:
            subject = Subject.parse(request.header.subject)
            async with self._table.lock:
                if subject not in self._table.quotas:
                    return _not_found(subject)
                await self._use(subject, None)
        except AuthError as error:
            return _refused(error)
        _log.info("%s deleted the quota of %s", connection.remote_address, subject)
        return Response()

    @answers(RequestCode.GET_QUOTAS, limits=("MAX_SHOWN_SUBJECTS",), permission=needs_cluster(Action.GET))
    def get(self, _connection: ServerConnection, request: Request[GetQuotasRequestHeader], _body: bytes) -> Response:
        """Return the quotas of one subject or of all subjects, with their usage and the number of refused requests."""
        header = request.header
        if not header.subject:
            return Response(body=msgspec.json.encode(self._limiter.listed(each=header.each)))
        try:
            subject = Subject.parse(header.subject)
        except AuthError as error:
            return _refused(error)
        found = self._limiter.shown(subject)
        return _not_found(subject) if found is None else Response(body=msgspec.json.encode([found]))

    async def _use(self, subject: Subject, limits: Limits | None) -> None:
        found = self._table.changed(subject, limits)
        await in_thread(self._table.save, found)
        self._table.use(found)


def _refused(error: AuthError) -> Response:
    return Response(ResponseCode.INVALID_PARAMETER, remark=str(error))


def _not_found(subject: Subject) -> Response:
    return Response(ResponseCode.QUERY_NOT_FOUND, remark=f"{subject} has no quota")
