"""A guard that writes the decisions of another guard, if there is one, to the audit log."""

from __future__ import annotations

from typing import Any

from cometmq.auth.audit.entry import details_of, resources_of
from cometmq.auth.audit.recorder import BY_THEMSELVES, AuditRecorder, account_of, caller
from cometmq.auth.guard import AccessGuard, fields_of
from cometmq.errors import CometMQError
from cometmq.remoting.frame import Frame
from cometmq.remoting.permissions import CALLER
from cometmq.remoting.processors import Processor, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.signing import ACCESS_KEY


class AuditedGuard:
    """A :class:`~cometmq.remoting.server.RequestGuard` that writes another guard's decisions to the audit log."""

    def __init__(self, guard: AccessGuard | None, recorder: AuditRecorder) -> None:
        self._guard = guard
        self._recorder = recorder

    def check(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], frame: Frame
    ) -> Response | None:
        """Return the response that denies a request, or ``None`` if the request is allowed."""
        if self._guard is None:
            self._recorder.allowed(connection, processor, request, frame.body, None)
            return None
        before = account_of(connection)
        CALLER.set(None)
        denial = self._guard.check(connection, processor, request, frame)
        account = caller()
        if account is not None and account != before:
            self._recorder.logged_in(connection, account)
        if denial is None:
            self._recorder.allowed(connection, processor, request, frame.body, account)
            return None
        is_administration = request.code not in BY_THEMSELVES
        self._recorder.denied(
            connection,
            request.code,
            denial.remark or "",
            account=account,
            claimed=_claimed(frame) if account is None else None,
            resources=resources_of(processor.permission, request.header, frame.body),
            details=details_of(request, frame.body) if is_administration else None,
        )
        return denial

    def check_unknown(self, connection: ServerConnection, code: int, frame: Frame) -> Response | None:
        """Return the response to a request with an unknown code; it must not reveal which codes exist."""
        denial = None if self._guard is None else self._guard.check_unknown(connection, code, frame)
        if denial is None:
            self._recorder.unknown(connection, code, account_of(connection))
        else:
            self._recorder.denied(
                connection, code, denial.remark or "", account=None, claimed=_claimed(frame), resources=[]
            )
        return denial


def _claimed(frame: Frame) -> str | None:
    try:
        return fields_of(frame).get(ACCESS_KEY)
    except CometMQError:
        return None
