"""The clients of the endpoint: their settings, their Telemetry streams, and their ways to the brokers.

A client is known by its account and its id, from the first call that its account may make: nobody else keeps memory
here, and nobody speaks for a client of another account. It is forgotten when it says that it has left, or after a time
without calls and without a Telemetry stream. When there are too many, the address with the most of them loses one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from cometmq.clock import Clock, TimerHandle
from cometmq.proxy.backend.backend import Answer, Backend, Link
from cometmq.proxy.errors import OK
from cometmq.proxy.limits import GRPC_SILENT_SECONDS, MAX_GRPC_CLIENTS
from cometmq.proxy.metadata import client_id_of, language_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.call import Call
from cometmq.proxy.times import ms_of
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.remoting.headers import Header

_log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 5.0
_REPEAT_SECONDS: Final = 0.3
_MAX_REPEATED_BYTES: Final = 16_384
"""Larger settings are not kept."""
_SECOND_CHANCES: Final = 8
Key = tuple[str | None, str]
"""Account and client id."""
OnCommand = Callable[["ClientSession", str, int, "Header | dict[str, str]", bytes, Answer], None]


class CommandStream(Protocol):
    """An open Telemetry stream."""

    def command(self, command: v2.TelemetryCommand) -> bool:
        """Send a command; tell whether the client reads its stream."""

    def close(self) -> None:
        """End the stream: another one takes its place, or the client is silent."""


class ClientSettings(NamedTuple):
    """The parts of the settings of a client that its calls need."""

    client_type: int
    is_consumer: bool
    request_timeout_ms: int
    repeated: v2.Settings | None
    """All of them, for a client that must hear them again."""

    @classmethod
    def of(cls, settings: v2.Settings) -> ClientSettings:
        """Take them from merged settings."""
        is_node = settings.user_agent.language == v2.Language.NODE_JS
        return cls(
            settings.client_type,
            settings.WhichOneof("pub_sub") == "subscription",
            ms_of(settings.request_timeout),
            settings if is_node and settings.ByteSize() <= _MAX_REPEATED_BYTES else None,
        )


class ClientSession:
    """One client."""

    __slots__ = ("client_id", "heartbeat", "key", "language", "link", "peer", "repeat", "seen_at", "settings", "stream")

    def __init__(self, account: str | None, client_id: str, peer: tuple[str, int], language: str) -> None:
        self.key: Final = (account, client_id)
        self.client_id: Final = client_id
        self.peer: Final = peer
        self.language: Final = language
        self.link: Link
        self.settings: ClientSettings | None = None
        """Once the client has sent them."""
        self.heartbeat: HeartbeatData | None = None
        """The last heartbeat for the brokers."""
        self.stream: CommandStream | None = None
        self.repeat: TimerHandle | None = None
        """Sends the settings again; see :meth:`repeat_settings`."""
        self.seen_at = 0.0

    @property
    def is_consumer(self) -> bool:
        """Its settings are those of a consumer."""
        return self.settings is not None and self.settings.is_consumer

    def repeat_settings(self, clock: Clock) -> None:
        """Send the settings again soon, after a route, to a client that may not have heard them.

        Node's client (1.0.8) looks up the routes of its topics one after the other, and asks for settings after the
        first. Only then it waits for the settings, for ever if they have come before.
        """
        if self.settings is None or self.settings.repeated is None:
            return
        if self.repeat is not None:
            self.repeat.cancel()
        self.repeat = clock.call_later(_REPEAT_SECONDS, self._repeat)

    def _repeat(self) -> None:
        self.repeat = None
        if self.stream is not None and self.settings is not None and self.settings.repeated is not None:
            self.stream.command(v2.TelemetryCommand(status=OK, settings=self.settings.repeated))


def producer_heartbeat(client_id: str, topics: Iterable[str]) -> HeartbeatData:
    """The heartbeat of a producer: each of its topics is a producer group, which transaction checks are sent to."""
    return HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=topic) for topic in topics])


def consumer_heartbeat(
    client_id: str, group: str, subscriptions: Iterable[SubscriptionData], *, is_push: bool
) -> HeartbeatData:
    """The heartbeat of a consumer."""
    data = ConsumerData(
        group_name=group,
        consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
        subscription_data_set=list(subscriptions),
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[data])


class Sessions:
    """All clients.

    :param on_command: called with a request of a broker to a client.
    """

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._by_key: dict[Key, ClientSession] = {}
        self._of_address: dict[str, dict[ClientSession, None]] = {}
        self._sweeper: TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.on_command: OnCommand | None = None

    def __len__(self) -> int:
        return len(self._by_key)

    def start(self) -> None:
        """Forget silent clients from now on."""
        self._sweeper = self._clock.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Forget all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._by_key.values()):
            self.forget(session)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def of(self, call: Call, account: str | None) -> ClientSession:
        """The client of a call that its account may make.

        :raises ProxyError: the call has no client id.
        """
        return self.known(call, account) or self._new(client_id_of(call), account, call)

    def known(self, call: Call, account: str | None) -> ClientSession | None:
        """The client of a call, if it has called before.

        :raises ProxyError: the call has no client id.
        """
        session = self._by_key.get((account, client_id_of(call)))
        if session is not None:
            session.seen_at = self._clock.monotonic()
        return session

    def has(self, session: ClientSession) -> bool:
        """Tell whether a client is still there."""
        return self._by_key.get(session.key) is session

    def all(self) -> list[ClientSession]:
        """All clients."""
        return list(self._by_key.values())

    def _new(self, client_id: str, account: str | None, call: Call) -> ClientSession:
        if len(self._by_key) >= MAX_GRPC_CLIENTS:
            self.forget(self._least_missed())
        peer = (call.peer.peer_ip, call.peer.peer_port)
        session = ClientSession(account, client_id, peer, language_of(call))
        session.seen_at = self._clock.monotonic()

        def asked(broker: str, code: int, header: Header | dict[str, str], body: bytes, give: Answer) -> None:
            if self.on_command is not None:
                self.on_command(session, broker, code, header, body, give)

        session.link = self._backend.link(client_id, session.peer, session.language, asked)
        self._by_key[session.key] = session
        self._of_address.setdefault(session.peer[0], {})[session] = None
        return session

    def _least_missed(self) -> ClientSession:
        """An old client of the address with the most; one of the first without a stream, if there is any."""
        crowd = max(self._of_address.values(), key=len)
        for _ in range(_SECOND_CHANCES):
            session = next(iter(crowd))
            if session.stream is None:
                break
            crowd[session] = crowd.pop(session)
        return next(iter(crowd))

    def forget(self, session: ClientSession, *, closes: bool = True) -> None:
        """Forget a client, and tell the brokers.

        :param closes: end its stream; a client that says that it leaves ends it by itself.
        """
        if not self.has(session):
            return
        del self._by_key[session.key]
        neighbours = self._of_address[session.peer[0]]
        del neighbours[session]
        if not neighbours:
            del self._of_address[session.peer[0]]
        if session.repeat is not None:
            session.repeat.cancel()
        if closes and session.stream is not None:
            session.stream.close()
        task = asyncio.get_running_loop().create_task(self._leave(session))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, session: ClientSession) -> None:
        try:
            await session.link.close(session.heartbeat)
        except Exception as error:
            _log.info("the brokers do not know yet that %s has left: %s", session.client_id, error)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for session in list(self._by_key.values()):
            if session.stream is None and now - session.seen_at > GRPC_SILENT_SECONDS:
                self.forget(session)
        self._sweeper = self._clock.call_later(_SWEEP_SECONDS, self._sweep)
