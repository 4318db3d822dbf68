"""Checks each gRPC call's signature and the account's permissions (``AuthenticationPipeline``).

The header is ``MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX``; the signature is the
HMAC-SHA1 of the value of ``x-mq-date-time``.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Sequence
from hmac import compare_digest
from typing import Final

from cometmq.auth.access_control import AccessControl
from cometmq.auth.audit.entry import text_of
from cometmq.auth.audit.recorder import AuditRecorder, account_of, caller
from cometmq.auth.guard import Session
from cometmq.auth.limits import MAX_AUDIT_RESOURCES, SIGNATURE_AHEAD_SECONDS, SIGNATURE_SECONDS
from cometmq.auth.model import DeniedError
from cometmq.clock import Clock
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.sessions import Checker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.permissions import CALLER, Need

DATE_TIME: Final = "x-mq-date-time"
AUTHORIZATION: Final = "authorization"
SCHEME: Final = "MQv2-HMAC-SHA1"
_DATE_FORMAT: Final = "%Y%m%dT%H%M%SZ"
CODES: Final = {
    "QueryRoute": RequestCode.GET_ROUTEINFO_BY_TOPIC,
    "QueryAssignment": RequestCode.QUERY_ASSIGNMENT,
    "Heartbeat": RequestCode.HEART_BEAT,
    "NotifyClientTermination": RequestCode.UNREGISTER_CLIENT,
    "SendMessage": RequestCode.SEND_MESSAGE_V2,
    "RecallMessage": RequestCode.RECALL_MESSAGE,
    "EndTransaction": RequestCode.END_TRANSACTION,
    "AckMessage": RequestCode.ACK_MESSAGE,
    "ChangeInvisibleDuration": RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    "ForwardMessageToDeadLetterQueue": RequestCode.CONSUMER_SEND_MSG_BACK,
    "UpdateOffset": RequestCode.UPDATE_CONSUMER_OFFSET,
    "GetOffset": RequestCode.QUERY_CONSUMER_OFFSET,
    "QueryOffset": RequestCode.GET_MAX_OFFSET,
    "ReceiveMessage": RequestCode.POP_MESSAGE,
    "PullMessage": RequestCode.PULL_MESSAGE,
    "Telemetry": RequestCode.HEART_BEAT,
}
"""The code of the equivalent remoting request for each method, for the audit log."""


class AccountChecker:
    """Checks each call's signature and permissions with a server's access control.

    :param requires_fresh: accept a signature for only a few minutes.
    """

    def __init__(self, access: AccessControl, *, clock: Clock, requires_fresh: bool) -> None:
        self._model = access.model
        self._guard = access.guard
        self._clock = clock
        self._requires_fresh = requires_fresh

    def check(self, call: Call, needs: Sequence[Need]) -> str | None:
        """See :class:`~cometmq.proxy.sessions.Checker`."""
        try:
            access_key, signature = _credentials(call.metadata.get(AUTHORIZATION, ""))
            account = self._model.account(access_key, call.peer.peer_ip, RequestCode.SEND_MESSAGE_V2)
            signer = account.signer
            if signer is not None:
                moment = call.metadata.get(DATE_TIME, "")
                if signature is None or not compare_digest(signer.sign(moment.encode()), signature):
                    raise self._model.bad_signature(account)
                if self._requires_fresh:
                    self._check_age(moment)
            CALLER.set(Session(access_key, account, self._model.version))
            for need in () if account.is_super else needs:
                refusal = account.refusal(need, RequestCode.SEND_MESSAGE_V2)
                if refusal is not None:
                    raise refusal
        except DeniedError as denied:
            self._guard.note_denial(call.name, call.peer.remote_address, denied)
            raise ProxyError(Code.UNAUTHORIZED, denied.message) from None
        return account.name or None

    def _check_age(self, moment: str) -> None:
        try:
            signed = datetime.datetime.strptime(moment, _DATE_FORMAT).replace(tzinfo=datetime.UTC)
        except ValueError:
            raise DeniedError(f"{DATE_TIME} is malformed; the form is 20260131T235959Z") from None
        behind_s = self._clock.now_ms() / 1000 - signed.timestamp()
        if not -SIGNATURE_AHEAD_SECONDS <= behind_s <= SIGNATURE_SECONDS:
            age = "old" if behind_s > 0 else "ahead"
            limit_s = SIGNATURE_SECONDS if behind_s > 0 else SIGNATURE_AHEAD_SECONDS
            raise DeniedError(
                f"by this server's clock the signature is {abs(behind_s):,.0f} s {age}; the maximum is {limit_s:g} s.",
                next_step="set the clocks of client and server by NTP",
            )


class AuditedChecker:
    """A checker that writes denials, logins and sampled calls to the audit log.

    :param checker: makes the decisions; ``None`` if no accounts are configured.
    """

    def __init__(self, checker: Checker | None, recorder: AuditRecorder) -> None:
        self._checker = checker
        self._recorder = recorder

    def check(self, call: Call, needs: Sequence[Need]) -> str | None:
        """See :class:`~cometmq.proxy.sessions.Checker`."""
        CALLER.set(None)
        code = CODES.get(call.name, RequestCode.HEART_BEAT)
        resources = [text_of(need) for need in needs[:MAX_AUDIT_RESOURCES]]
        try:
            name = None if self._checker is None else self._checker.check(call, needs)
        except ProxyError as denial:
            account = self._note_login(call)
            claimed = _credentials(call.metadata.get(AUTHORIZATION, ""))[0] if account is None else None
            self._recorder.denied(call.peer, code, str(denial), account=account, claimed=claimed, resources=resources)
            raise
        self._recorder.passed(call.peer, code, self._note_login(call), resources)
        return name

    def _note_login(self, call: Call) -> str | None:
        """Record a login if the account is new on its connection; return the account whose signature was accepted."""
        account, before = caller(), account_of(call.peer)
        if account is not None:
            call.peer.account = CALLER.get()
            if account != before:
                self._recorder.logged_in(call.peer, account)
        return account


def checker_of(
    access: AccessControl | None, audit: AuditRecorder | None, *, clock: Clock, requires_fresh: bool
) -> Checker | None:
    """Return an endpoint's checker; ``audit`` records denials, logins and sampled calls."""
    checker: Checker | None = None
    if access is not None:
        checker = AccountChecker(access, clock=clock, requires_fresh=requires_fresh)
    return checker if audit is None else AuditedChecker(checker, audit)


def _credentials(text: str) -> tuple[str | None, bytes | None]:
    """Return the access key, and the signature in base64, in which remoting clients send it."""
    scheme, _, rest = text.partition(" ")
    if scheme != SCHEME:
        return None, None
    fields = {}
    for part in rest.split(","):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    access_key = fields.get("Credential", "").partition("/")[0] or None
    try:
        signature = base64.b64encode(bytes.fromhex(fields.get("Signature", "")))
    except (ValueError, binascii.Error):
        return access_key, None
    return access_key, signature
