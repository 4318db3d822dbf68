"""The endpoint's clients: their accounts, settings, Telemetry streams, and links to the brokers.

A client is identified by its account and its id. It is remembered at its first permitted call, so a denied call uses no
memory, and nobody can act for a client of another account. :data:`TRANSITIONS` defines the states of a session. Above
the maximum number of sessions, the address with the most sessions loses a session.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, NamedTuple, Protocol

from cometmq.clock import Clock, TimerHandle
from cometmq.java_values import is_blank
from cometmq.limits import MAX_CLIENT_ID_CHARS
from cometmq.loop import TaskSet
from cometmq.periodic import Periodic
from cometmq.proxy.backend.backend import Backend, BrokerRequest, ClientIdentity, Link
from cometmq.proxy.converter import ms_of
from cometmq.proxy.errors import OK, ProxyError
from cometmq.proxy.limits import GRPC_SILENT_SECONDS, MAX_GRPC_CLIENTS
from cometmq.proxy.lite import unsubscribe
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.bodies import HeartbeatData
from cometmq.remoting.permissions import Action, Need, on_group, on_topic

_log = logging.getLogger(__name__)

CLIENT_ID: Final = "x-mq-client-id"
LANGUAGE: Final = "x-mq-language"
_MAX_LANGUAGE_CHARS: Final = 32
_SWEEP_SECONDS: Final = 5.0
_RESEND_SECONDS: Final = 0.3
_MAX_RESENT_BYTES: Final = 16_384
"""Maximum size of the settings that are stored for resending; larger settings are not stored."""
_SECOND_CHANCES: Final = 8
_NEEDS_CACHED: Final = 1_024
Key = tuple[str | None, str]
"""The key of a session: account and client id."""


class SessionState(enum.Enum):
    """The states of a session."""

    CALLING = enum.auto()
    """The client has made calls but has not sent its settings."""
    CONNECTED = enum.auto()
    """The client's Telemetry stream is open, and its settings are known."""
    DISCONNECTED = enum.auto()
    """The client's Telemetry stream has ended, but its settings are known."""
    REMOVED = enum.auto()
    """The endpoint has forgotten the client, whose next call starts a new session."""


class SessionEvent(enum.Enum):
    """Events that change a session's state."""

    SETTINGS = enum.auto()
    """The client sent settings over a Telemetry stream."""
    STREAM_END = enum.auto()
    """The client's Telemetry stream ended."""
    SILENCE = enum.auto()
    """The client made no call for some time."""
    REMOVAL = enum.auto()
    """The client leaves, there are too many clients, or the endpoint stops."""


TRANSITIONS: Final = {
    (SessionState.CALLING, SessionEvent.SETTINGS): SessionState.CONNECTED,
    (SessionState.CALLING, SessionEvent.SILENCE): SessionState.REMOVED,
    (SessionState.CALLING, SessionEvent.REMOVAL): SessionState.REMOVED,
    (SessionState.CONNECTED, SessionEvent.SETTINGS): SessionState.CONNECTED,
    (SessionState.CONNECTED, SessionEvent.STREAM_END): SessionState.DISCONNECTED,
    (SessionState.CONNECTED, SessionEvent.REMOVAL): SessionState.REMOVED,
    (SessionState.DISCONNECTED, SessionEvent.SETTINGS): SessionState.CONNECTED,
    (SessionState.DISCONNECTED, SessionEvent.SILENCE): SessionState.REMOVED,
    (SessionState.DISCONNECTED, SessionEvent.REMOVAL): SessionState.REMOVED,
}
"""The next state for each state and event; other events are ignored."""


class Checker(Protocol):
    """Checks the account that makes a call."""

    def check(self, call: Call, needs: Sequence[Need]) -> str | None:
        """Check that the account may make the call; return the account's name, if any.

        :raises ProxyError: the account is unknown, or its permissions do not suffice.
        """


class CommandStream(Protocol):
    """An open Telemetry stream."""

    def send_command(self, command: v2.TelemetryCommand) -> bool:
        """Send a command; return False if the client does not read its stream."""

    def close(self) -> None:
        """End the stream."""


class ClientSettings(NamedTuple):
    """The parts of a client's settings that its calls need."""

    client_type: int
    request_timeout_ms: int
    resent: v2.Settings | None
    """The complete settings, if they may have to be sent to the client again."""

    @classmethod
    def of(cls, settings: v2.Settings) -> ClientSettings:
        """Extract the settings that calls need from merged settings."""
        is_node = settings.user_agent.language == v2.Language.NODE_JS
        resent = settings if is_node and settings.ByteSize() <= _MAX_RESENT_BYTES else None
        return cls(settings.client_type, ms_of(settings.request_timeout), resent)


class ClientSession:
    """The session of one client.

    :param connect: opens the client's link to the brokers.
    """

    __slots__ = (
        *("_resend_timer", "called_at", "heartbeat", "identity", "key", "link", "lite", "settings", "state"),
        "stream",
    )

    def __init__(
        self, account: str | None, identity: ClientIdentity, connect: Callable[[ClientSession], Link], called_at: float
    ) -> None:
        self.key: Final = (account, identity.client_id)
        self.identity: Final = identity
        self.state = SessionState.CALLING
        self.settings: ClientSettings | None = None
        self.heartbeat: HeartbeatData | None = None
        """The last heartbeat for the brokers."""
        self.lite: tuple[str, str] | None = None
        """The group and the topic with which the client subscribed to lite topics."""
        self.stream: CommandStream | None = None
        self.called_at = called_at
        """Monotonic time in seconds of the client's last call or of the end of its stream."""
        self._resend_timer: TimerHandle | None = None
        self.link: Final = connect(self)

    @property
    def is_removed(self) -> bool:
        """True once the endpoint has forgotten the client."""
        return self.state is SessionState.REMOVED

    def handle(self, event: SessionEvent) -> None:
        """Enter the state that follows after an event."""
        self.state = TRANSITIONS.get((self.state, event), self.state)

    def use_stream(self, stream: CommandStream, settings: v2.Settings) -> None:
        """Use a stream for commands and end the previous stream."""
        before, self.stream = self.stream, stream
        self.settings = ClientSettings.of(settings)
        self.handle(SessionEvent.SETTINGS)
        if before is not None and before is not stream:
            before.close()

    def stream_ended(self, stream: CommandStream, now: float) -> None:
        """Record the end of a stream, unless a newer stream has replaced it."""
        if self.stream is stream:
            self.stream = None
            self.called_at = now
            self.handle(SessionEvent.STREAM_END)

    def resend_settings(self, clock: Clock) -> None:
        """After a route request, send the settings again to a client that may have missed them.

        Node's client (1.0.8) looks up the routes of its topics one after the other, and sends its settings after the
        first. It waits for the answer only after that; if the answer arrives earlier, the client waits forever.
        """
        if self.settings is None or self.settings.resent is None:
            return
        self.cancel_resending()
        self._resend_timer = clock.call_later(_RESEND_SECONDS, self._resend)

    def cancel_resending(self) -> None:
        """Cancel resending the settings."""
        if self._resend_timer is not None:
            self._resend_timer.cancel()
            self._resend_timer = None

    def _resend(self) -> None:
        self._resend_timer = None
        if self.stream is not None and self.settings is not None and self.settings.resent is not None:
            self.stream.send_command(v2.TelemetryCommand(status=OK, settings=self.settings.resent))


OnRequest = Callable[["Sessions", ClientSession, BrokerRequest], None]
"""A function that passes a broker's request on to a client, or to another client in its group."""


class Sessions:
    """The sessions of all clients.

    :param checker: checks the accounts of calls; ``None`` if no accounts are configured.
    """

    def __init__(self, backend: Backend, checker: Checker | None, clock: Clock, on_request: OnRequest) -> None:
        self._backend = backend
        self._checker = checker
        self._clock = clock
        self._on_request = on_request
        self._by_key: dict[Key, ClientSession] = {}
        self._by_ip: dict[str, dict[ClientSession, None]] = {}
        self._sweeps = Periodic("removing silent clients", _SWEEP_SECONDS, self._sweep, clock=clock)
        self._closing = TaskSet()

    def __len__(self) -> int:
        return len(self._by_key)

    def start(self) -> None:
        """Start removing idle clients."""
        self._sweeps.start()

    async def stop(self) -> None:
        """Remove all clients."""
        self._sweeps.close()
        for session in list(self._by_key.values()):
            self.remove(session)
        await self._closing.join()

    # --- calls ----------------------------------------------------------------------------------
    def admit(self, call: Call, needs: Sequence[Need]) -> ClientSession:
        """Check that the account may make the call; return the client and remember it.

        :raises ProxyError: the account is denied, or the call has no client id.
        """
        account = self.check(call, needs)
        return self._find_session(call, account) or self._add(call, account)

    def find(self, call: Call) -> ClientSession | None:
        """Check the account that makes a call; return the client if it is known.

        :raises ProxyError: the account is denied, or the call has no client id.
        """
        return self._find_session(call, self.check(call, ()))

    def check(self, call: Call, needs: Sequence[Need]) -> str | None:
        """Check that the account may make the call; return the account's name, if any.

        :raises ProxyError: the account is denied.
        """
        return None if self._checker is None else self._checker.check(call, needs)

    def _find_session(self, call: Call, account: str | None) -> ClientSession | None:
        session = self._by_key.get((account, client_id_of(call)))
        if session is not None:
            session.called_at = self._clock.monotonic()
        return session

    def producers_of(self, group: str) -> list[ClientSession]:
        """Return the clients that are producers in a group."""
        return [
            session
            for session in self._by_key.values()
            if session.heartbeat is not None
            and any(producer.group_name == group for producer in session.heartbeat.producer_data_set)
        ]

    # --- entering and leaving -------------------------------------------------------------------
    def _add(self, call: Call, account: str | None) -> ClientSession:
        if len(self._by_key) >= MAX_GRPC_CLIENTS:
            self.remove(self._session_to_evict())
        language = call.metadata.get(LANGUAGE, "OTHER")[:_MAX_LANGUAGE_CHARS].upper()
        identity = ClientIdentity(client_id_of(call), (call.peer.peer_ip, call.peer.peer_port), language)
        session = ClientSession(account, identity, self._connect, self._clock.monotonic())
        self._by_key[session.key] = session
        self._by_ip.setdefault(identity.peer[0], {})[session] = None
        return session

    def _connect(self, session: ClientSession) -> Link:
        return self._backend.connect(session.identity, partial(self._on_request, self, session))

    def _session_to_evict(self) -> ClientSession:
        """Return an old client from the address with the most clients, preferably one that has no stream."""
        crowd = max(self._by_ip.values(), key=len)
        for _ in range(_SECOND_CHANCES):
            session = next(iter(crowd))
            if session.stream is None:
                break
            crowd[session] = crowd.pop(session)
        return next(iter(crowd))

    def remove(self, session: ClientSession, *, closes_stream: bool = True) -> None:
        """Forget a client and unregister it from the brokers.

        :param closes_stream: end the client's stream; a leaving client ends its stream itself.
        """
        if session.is_removed:
            return
        session.handle(SessionEvent.REMOVAL)
        del self._by_key[session.key]
        ip = session.identity.peer[0]
        del self._by_ip[ip][session]
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        session.cancel_resending()
        if closes_stream and session.stream is not None:
            session.stream.close()
        self._closing.start(self._close_link(session), "unregister a gRPC client")

    async def _close_link(self, session: ClientSession) -> None:
        try:
            if session.lite is not None:
                await unsubscribe(self._backend, session.link, session.identity.client_id, *session.lite)
            await session.link.close(session.heartbeat)
        except Exception as error:
            _log.info("cannot unregister client %s from the brokers yet: %s", session.identity.client_id, error)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for session in list(self._by_key.values()):
            is_silent = now - session.called_at > GRPC_SILENT_SECONDS
            if is_silent and (session.state, SessionEvent.SILENCE) in TRANSITIONS:
                self.remove(session)


@lru_cache(_NEEDS_CACHED)
def consumer_needs(topic: str, group: str) -> Sequence[Need]:
    """Return the permissions that a consumer needs."""
    return on_topic(topic, Action.SUB), on_group(group, Action.SUB)


def client_id_of(call: Call) -> str:
    """Return the client id in a call's metadata.

    :raises ProxyError: the call has no client id, or its client id is too long.
    """
    client_id = call.metadata.get(CLIENT_ID, "")
    if is_blank(client_id):
        raise ProxyError(Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
    if len(client_id) > MAX_CLIENT_ID_CHARS:
        raise ProxyError(Code.BAD_REQUEST, f"the client id is longer than {MAX_CLIENT_ID_CHARS} characters")
    return client_id
