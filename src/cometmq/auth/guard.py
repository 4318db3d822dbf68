"""Checks every request before it is handled (``PlainAccessValidator``).

First the signature is checked, then the permissions that the request needs (:mod:`cometmq.remoting.permissions`). The
signature of each request is checked; the account of a connection, and the topics and groups that it may use, are cached
until accounts or policies change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from cometmq.auth.freshness import Freshness
from cometmq.auth.limits import MAX_CACHED_DECISIONS
from cometmq.auth.model import AccessModel, Account, DeniedError
from cometmq.clock import Clock
from cometmq.core import CORE
from cometmq.limits import MAX_EXT_FIELDS
from cometmq.remoting.bodies import BodyError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import decode_header
from cometmq.remoting.frame import JSON, Frame
from cometmq.remoting.permissions import CALLER, Action, Caller, Kind, Need, on_topic
from cometmq.remoting.processors import Processor, Request, Response, RpcRejectedError, describe
from cometmq.remoting.server_connection import ServerConnection
from cometmq.remoting.signing import ACCESS_KEY, STAMP

_log = logging.getLogger(__name__)

_SERVERS_NEED: Final = Need(Kind.CLUSTER, "", (Action.UPDATE,))
"""The permission that a slave's account needs to copy the log."""
_LOG_SECONDS: Final = 1.0
_SHOWN_CHARS: Final = 300


class Peer(Protocol):
    """The properties of a connection that the guard uses."""

    account: Caller | None
    """The account that made the last request; set by the guard."""
    peer_ip: str


class _Fields(msgspec.Struct):
    """A JSON header's fields, whose values are texts."""

    extFields: dict[str, str] = {}  # noqa: N815 - the wire's name


_decode_fields: Final = msgspec.json.Decoder(_Fields).decode


class Session:
    """A connection's account, and the permissions that it has already been granted."""

    __slots__ = ("access_key", "account", "allowed", "is_super", "name", "publisher", "signer", "version")

    def __init__(self, access_key: str | None, account: Account, version: int) -> None:
        self.access_key = access_key
        self.account = account
        self.name = account.name
        self.version = version
        self.allowed: set[Hashable] = set()
        self.is_super = account.is_super
        self.signer = account.signer
        self.publisher: Any = None
        """The account in the compiled core's form, created on first use."""

    def may(self, need: Need) -> bool:
        """Return whether the account has the permissions."""
        return self.account.refusal(need, 0) is None

    def may_publish(self, topic: str) -> bool:
        """Return whether the account may send to a topic."""
        need = on_topic(topic, Action.PUB)
        return self.is_super or self.account.refusal(need, RequestCode.SEND_MESSAGE_V2) is None


class AccessGuard:
    """A :class:`~cometmq.remoting.server.RequestGuard` that checks each request with an access model."""

    def __init__(self, model: AccessModel, *, clock: Clock, requires_stamps: bool = False) -> None:
        self._model = model
        self._freshness = Freshness(required=requires_stamps, clock=clock)
        self._clock = clock
        self._logged_at = -_LOG_SECONDS
        self._unlogged = 0
        self.denials = 0
        """The number of denied requests."""

    def admit_server(self, peer: Peer, code: int, frame: Frame) -> None:
        """Check that the account of a slave may copy the log.

        :param frame: the slave's request ``code``; it must be signed and have a stamp, unless requests from its address
            need no signature.
        :raises DeniedError: the account may not change the cluster, or the request is unsigned or a replay.
        :raises RpcRejectedError: the client must sign the request again.
        :raises FrameError: the frame is malformed.
        """
        session = self._session(peer, code, frame)
        if session.signer is not None and STAMP not in fields_of(frame):
            raise DeniedError(f"The request has no {STAMP}, so it could be a replay.")
        refusal = None if session.is_super else session.account.refusal(_SERVERS_NEED, code)
        if refusal is not None:
            raise refusal

    def check(
        self, connection: ServerConnection, processor: Processor, request: Request[Any], frame: Frame
    ) -> Response | None:
        """Return the response that denies a request, or ``None`` if the request is allowed."""
        code = processor.code
        if code in self._model.unsigned:
            CALLER.set(None)
            return None
        try:
            session = self._session(connection, code, frame)
            CALLER.set(session)
            if session.is_super or code in self._model.unchecked:
                return None
            permission = processor.permission
            if permission is None:
                raise DeniedError(f"No permission is defined for {describe(code)}")
            key = permission.key(request.header)
            if key is not None and key in session.allowed:
                return None
            for need in permission.needs(request.header, frame.body):
                refusal = session.account.refusal(need, code)
                if refusal is not None:
                    raise refusal
            if key is not None and len(session.allowed) < MAX_CACHED_DECISIONS:
                session.allowed.add(key)
        except DeniedError as denied:
            return self._deny(connection, code, denied)
        except RpcRejectedError as rejected:
            return rejected.response()
        except BodyError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=error.message)
        return None

    def check_unknown(self, connection: ServerConnection, code: int, frame: Frame) -> Response | None:
        """Return the response to a request with an unknown code; it must not reveal which codes exist."""
        try:
            self._session(connection, code, frame)
        except DeniedError as denied:
            return self._deny(connection, code, denied)
        except RpcRejectedError as rejected:
            return rejected.response()
        return None

    def publisher(self, connection: ServerConnection) -> Any:
        """Return a connection's account for the compiled core (``Account``).

        Return ``None`` if Python must check the next request, because it is the first one or accounts or policies have
        changed.
        """
        session = connection.account
        if not isinstance(session, Session) or session.version != self._model.version:
            return None
        if session.publisher is None:
            signer = session.account.signer
            accepts: Callable[[str | None], bool] = partial(self._freshness.accepts, session.account.name)
            session.publisher = CORE.Account(
                session.access_key,
                None if signer is None else signer.core_key,
                session.may_publish,
                accepts,
                self._freshness.required,
            )
        return session.publisher

    def _session(self, connection: Peer, code: int, frame: Frame) -> Session:
        """Check a request's signature and return its account.

        :raises DeniedError: the account is unknown, the signature is wrong, or the request is a replay.
        :raises RpcRejectedError: the client must sign the request again.
        """
        fields = fields_of(frame)
        access_key = fields.get(ACCESS_KEY)
        session = connection.account
        model = self._model
        if not isinstance(session, Session) or session.access_key != access_key or session.version != model.version:
            account = model.account(access_key, connection.peer_ip, code)
            session = Session(access_key, account, model.version)
        signer = session.signer
        if signer is not None:
            if not signer.accepts(fields, frame.body):
                raise model.bad_signature(session.account)
            stamp = fields.get(STAMP)
            if stamp is not None and min(fields) != STAMP:
                stamp = ""  # the signed text does not begin with the stamp
            self._freshness.check(session.account.name, stamp)
        connection.account = session
        return session

    def _deny(self, connection: ServerConnection, code: int, denied: DeniedError) -> Response:
        """Log a denial and return the response."""
        self.note_denial(describe(code), connection.remote_address, denied)
        return self._model.answer(denied)

    def note_denial(self, what: str, address: str, denied: DeniedError) -> None:
        """Count a denial; log at most one denial per second.

        :param what: a description of the request.
        """
        self.denials += 1
        now = self._clock.monotonic()
        if now - self._logged_at < _LOG_SECONDS:
            self._unlogged += 1
        else:
            others = f", after {self._unlogged} denials that were not logged" if self._unlogged else ""
            words = denied.message[:_SHOWN_CHARS]
            _log.warning("%s of %s denied: %r%s", what, address, words, others)
            self._logged_at, self._unlogged = now, 0


def fields_of(frame: Frame) -> Mapping[str, str]:
    """Return the header fields in the order in which the client signed them."""
    if frame.serialize_type == JSON:
        try:
            fields = _decode_fields(frame.header).extFields
            if len(fields) <= MAX_EXT_FIELDS:
                return fields
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return decode_header(frame.serialize_type, frame.header).ext_fields or {}
