"""The clients of the endpoint: their settings, their Telemetry streams, and their ways to the brokers.

A client is known by its id from its first call. It is forgotten when it says that it has left, or after a time without
calls and without a Telemetry stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from cometmq.clock import Clock, TimerHandle
from cometmq.proxy.backend.backend import Backend, Link
from cometmq.proxy.errors import OK
from cometmq.proxy.limits import GRPC_SILENT_SECONDS, MAX_GRPC_CLIENTS
from cometmq.proxy.metadata import client_id_of, language_of
from cometmq.proxy.protocol import v2
from cometmq.proxy.rpc.call import Call
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from cometmq.remoting.headers import Header

_log = logging.getLogger(__name__)

_SWEEP_SECONDS: Final = 5.0
_REPEAT_SECONDS: Final = 0.3
OnCommand = Callable[["ClientSession", str, int, "Header | dict[str, str]", bytes], None]


class CommandStream(Protocol):
    """An open Telemetry stream."""

    def command(self, command: v2.TelemetryCommand) -> bool:
        """Send a command; tell whether the client reads its stream."""

    def close(self) -> None:
        """End the stream: another one takes its place, or the client is silent."""


class ClientSession:
    """One client."""

    __slots__ = ("client_id", "heartbeat", "language", "link", "peer", "repeat", "seen_at", "settings", "stream")

    def __init__(self, client_id: str, peer: tuple[str, int], language: str) -> None:
        self.client_id: Final = client_id
        self.peer: Final = peer
        self.language: Final = language
        self.link: Link
        self.settings: v2.Settings | None = None
        """The merged settings, once the client has sent its own."""
        self.heartbeat: HeartbeatData | None = None
        """What the brokers know of the client."""
        self.stream: CommandStream | None = None
        self.repeat: TimerHandle | None = None
        """Sends the settings again; see :meth:`repeat_settings`."""
        self.seen_at = 0.0

    @property
    def is_consumer(self) -> bool:
        """Its settings are those of a consumer."""
        return self.settings is not None and self.settings.WhichOneof("pub_sub") == "subscription"

    def repeat_settings(self, clock: Clock) -> None:
        """Send the settings again soon, after a route, to a client that may not have heard them.

        Node's client (1.0.8) looks up the routes of its topics one after the other, and asks for settings after the
        first. Only then it waits for the settings, for ever if they have come before.
        """
        if self.settings is None or self.settings.user_agent.language != v2.Language.NODE_JS:
            return
        if self.repeat is not None:
            self.repeat.cancel()
        self.repeat = clock.call_later(_REPEAT_SECONDS, self._repeat)

    def _repeat(self) -> None:
        self.repeat = None
        if self.stream is not None and self.settings is not None:
            self.stream.command(v2.TelemetryCommand(status=OK, settings=self.settings))


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
        self._by_id: dict[str, ClientSession] = {}
        self._sweeper: TimerHandle | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self.on_command: OnCommand | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def start(self) -> None:
        """Forget silent clients from now on."""
        self._sweeper = self._clock.call_later(_SWEEP_SECONDS, self._sweep)

    async def stop(self) -> None:
        """Forget all."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._by_id.values()):
            self.forget(session)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def of(self, call: Call) -> ClientSession:
        """The client of a call.

        :raises ProxyError: the call has no client id.
        """
        client_id = client_id_of(call)
        session = self._by_id.get(client_id)
        if session is None:
            session = self._new(client_id, call)
        session.seen_at = self._clock.monotonic()
        return session

    def get(self, client_id: str) -> ClientSession | None:
        """The client of an id."""
        return self._by_id.get(client_id)

    def all(self) -> list[ClientSession]:
        """All clients."""
        return list(self._by_id.values())

    def _new(self, client_id: str, call: Call) -> ClientSession:
        if len(self._by_id) >= MAX_GRPC_CLIENTS:
            idle = [session for session in self._by_id.values() if session.stream is None]
            self.forget(min(idle or self._by_id.values(), key=lambda session: session.seen_at))
        session = ClientSession(client_id, (call.peer.peer_ip, call.peer.peer_port), language_of(call))

        def asked(broker: str, code: int, header: Header | dict[str, str], body: bytes) -> None:
            if self.on_command is not None:
                self.on_command(session, broker, code, header, body)

        session.link = self._backend.link(client_id, session.peer, session.language, asked)
        self._by_id[client_id] = session
        return session

    def forget(self, session: ClientSession, *, closes: bool = True) -> None:
        """Forget a client, and tell the brokers.

        :param closes: end its stream; a client that says that it leaves ends it by itself.
        """
        if self._by_id.get(session.client_id) is not session:
            return
        del self._by_id[session.client_id]
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
            _log.info("the brokers were not told that %s has left: %s", session.client_id, error)

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        for session in list(self._by_id.values()):
            if session.stream is None and now - session.seen_at > GRPC_SILENT_SECONDS:
                self.forget(session)
        self._sweeper = self._clock.call_later(_SWEEP_SECONDS, self._sweep)
