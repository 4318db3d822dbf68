"""Kombu's transport on RocketMQ."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

from kombu import Connection
from kombu.transport import virtual

from cometmq import __version__
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.channel import Channel
from cometmq.integrations.kombu.errors import CONNECTION_ERRORS, RefusedError, raise_to_kombu
from cometmq.integrations.kombu.mailbox import Mailbox
from cometmq.integrations.kombu.sessions import SESSIONS, SyncSession
from cometmq.integrations.kombu.settings import Settings, masked
from cometmq.integrations.kombu.use import Use
from cometmq.message.ports import NAMESRV_PORT

DRIVER: Final = "cometmq"
_AT_ONCE: Final = 100
"""Number of messages that are delivered before other events of Celery's event loop are handled."""


class Transport(virtual.Transport):
    """A connection of Kombu; all of a process share the connections to the cluster."""

    Channel = Channel
    can_parse_url = True
    default_port = NAMESRV_PORT
    driver_type = DRIVER
    driver_name = "cometmq"
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"}), heartbeats=False
    )
    connection_errors = (*virtual.Transport.connection_errors, *CONNECTION_ERRORS)
    channel_errors = (*virtual.Transport.channel_errors, RefusedError)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    def __init__(self, client: Connection, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        _join_celery()
        self._use: Use | None = None
        self._mailbox: Mailbox | None = None
        self.hub: Any = None

    def driver_version(self) -> str:
        """Return the version of CometMQ."""
        return __version__

    @property
    def use(self) -> Use:
        """The use of the session of this process."""
        if self._use is None or self._use.session.pid != os.getpid():
            settings = Settings.of(self.client)
            try:
                session = SESSIONS.acquire(settings)
            except CometMQError as error:
                raise_to_kombu(error)
            self._use = Use(self, session)
        return self._use

    @property
    def session(self) -> SyncSession:
        """The session of this process."""
        return self.use.session

    def establish_connection(self) -> Transport:
        """Open the connections, or use those that other transports of this process have opened.

        :raises RemotingError: no nameserver answers, or no broker.
        :raises RefusedError: gevent or eventlet has replaced threads, or a file of TLS cannot be used.
        """
        if not self.verify_connection(self):
            self.channels.clear()
            self._avail_channels.clear()
            self._callbacks.clear()
            self._close_mailbox()
            self.hub = None
        session = self.session
        try:
            session.run(session.inner.check())
        except BaseException:
            self._end_use()
            raise
        super().establish_connection()
        self._mailbox = self.mailbox  # now: later, this thread and that of the connections would each make one
        return self

    def verify_connection(self, connection: Any) -> bool:
        """Return whether the connections belong to this process."""
        return self._use is not None and self._use.session.pid == os.getpid()

    def close_connection(self, connection: Any) -> None:
        """Close the channels, and the connections if no other transport uses them."""
        hub = self.hub
        if not self.verify_connection(connection):
            self._use = None
            self._close_mailbox()
            return
        if hub is not None:
            hub.remove_reader(self.mailbox.fileno())
            self.hub = None
        try:
            super().close_connection(connection)
        finally:
            self._end_use()
            self._close_mailbox()

    def _end_use(self) -> None:
        use, self._use = self._use, None
        if use is not None:
            use.end()

    def _close_mailbox(self) -> None:
        if self._mailbox is not None:
            self._mailbox.close()
            self._mailbox = None

    # --- messages ---

    @property
    def mailbox(self) -> Mailbox:
        """The messages that have arrived for the channels."""
        if self._mailbox is None:
            self._mailbox = Mailbox()
        return self._mailbox

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver the messages that have arrived, or wait for one; of replies, deliver one.

        :raises TimeoutError: none came in time.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while (delivered := self._deliver_next()) is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self.mailbox.wait(left)
        while delivered:
            delivered = self._deliver_next()

    def _deliver_next(self) -> bool | None:
        """Deliver a message; return whether it belongs to a topic's queue, or ``None`` if there is none."""
        while (item := self.mailbox.take()) is not None:
            channel, held = item
            if channel.dispatch(held):
                return held[2] is not None
        return None

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's event loop wait for messages."""
        self.hub = loop
        loop.add_reader(self.mailbox.fileno(), self._on_messages)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Let Celery's event loop wait no more."""
        loop.remove_reader(self.mailbox.fileno())
        self.hub = None

    def _on_messages(self) -> None:
        self.mailbox.drain()
        try:
            for _ in range(_AT_ONCE):
                if self._deliver_next() is None:
                    return
        finally:
            self.mailbox.wake_if_filled()

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, with its password only if it is wanted."""
        return uri if include_password else masked(uri, mask)


def _join_celery() -> None:
    """Let workers synchronize at their start and hear each other, which Celery allows for the transports it knows."""
    for name, step in (("mingle", "Mingle"), ("gossip", "Gossip")):
        module = sys.modules.get(f"celery.worker.consumer.{name}")
        if module is not None:
            getattr(module, step).compatible_transports.add(DRIVER)
