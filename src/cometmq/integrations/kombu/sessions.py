"""The sessions of this process; a forked child has none, and gets connections of its own."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from cometmq.client.errors import ClientStateError
from cometmq.client.sync.base import SyncClient
from cometmq.client.sync.direct import DirectSender
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.envelope import Payload
from cometmq.integrations.kombu.errors import RefusedError, raise_to_kombu
from cometmq.integrations.kombu.session import Doubts, Session
from cometmq.integrations.kombu.settings import Settings
from cometmq.threads import are_real, call_in_forked_children

R = TypeVar("R")


class SyncSession(SyncClient[Session]):
    """A session, for callers without an event loop.

    :param doubts: see :class:`Session <cometmq.integrations.kombu.session.Session>`.
    :raises ClientStateError: gevent or eventlet has replaced threads.
    """

    def __init__(self, settings: Settings, doubts: Doubts) -> None:
        self.users = 0
        self.pid = os.getpid()
        self.settings = settings
        self._bind(Session, settings, doubts)
        self.run(self._inner.open())
        producer = self._inner.producer
        self._direct = DirectSender(self._inner.instance, producer.group, producer.config, settings.security)

    @property
    def inner(self) -> Session:
        """The session; its coroutines are for :meth:`run`."""
        return self._inner

    def run(self, work: Coroutine[Any, Any, R], undelivered: Callable[[R], object] | None = None) -> R:
        """Run a coroutine on the event loop of the connections, and wait for it.

        :param undelivered: called on the loop with the result if a signal handler raises in the caller meanwhile.
        :raises CometMQError: one of :data:`CONNECTION_ERRORS <cometmq.integrations.kombu.errors.CONNECTION_ERRORS>`.
        :raises RefusedError: any other error of CometMQ.
        """
        try:
            return self._run(work, undelivered)
        except CometMQError as error:
            raise_to_kombu(error)

    def call(self, function: Callable[..., R], *args: Any) -> R:
        """Call a function on the event loop of the connections, and wait for it."""
        return self._call(partial(function, *args))

    def put(self, queue: str, payload: Payload) -> None:
        """Store a message in a queue; see :meth:`Session.put <cometmq.integrations.kombu.session.Session.put>`.

        The usual task, to a queue that is known, is sent in the caller's thread.

        :raises CometMQError: it may not be stored; see :meth:`run`.
        :raises RefusedError: it is not stored; see :meth:`run`.
        """
        try:
            if not self._put_direct(queue, payload):
                self.run(self._inner.put(queue, payload))
        except (CometMQError, RefusedError):
            raise
        except BaseException:  # for example a time limit of the task that sends this one
            self._inner.note_interruption(queue, payload)
            raise

    def _put_direct(self, queue: str, payload: Payload) -> bool:
        """Store a message in the caller's thread; return false if the event loop has to store it."""
        message = self._inner.plain_message(queue, payload)
        if message is None:
            return False
        try:
            return self._direct.send(message)
        except CometMQError as error:
            if not self._inner.note_failure(message, error):
                raise_to_kombu(error)
            self.run(self._inner.ensure_queue(queue))  # another process has deleted it
            return False

    def close(self) -> None:
        """Close the connections."""
        self._direct.close()
        self.run(self._inner.close())

    def soon(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the event loop of the connections, without waiting for it."""
        self._loop.call_soon_threadsafe(function, *args)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine on the event loop of the connections, without waiting for it."""
        self.soon(self._inner.instance.spawn, work)


class Sessions:
    """The open sessions, by settings, with the number of their users."""

    def __init__(self) -> None:
        self._of_parents: list[object] = []
        """The sessions of parent processes, which must not be collected: their sockets belong to the parent."""
        self._forget()
        call_in_forked_children(self._forget)

    def _forget(self) -> None:
        self._of_parents.append(getattr(self, "_open", None))
        self._lock = threading.Lock()
        self._open: dict[Settings, SyncSession] = {}
        self._doubts: dict[Settings, Doubts] = {}
        """The messages in doubt: Kombu closes a connection that has failed before it publishes again."""

    def acquire(self, settings: Settings) -> SyncSession:
        """Return the session with these settings, which is opened for its first user; no request is sent yet.

        :raises ClientStateError: gevent or eventlet has replaced threads.
        """
        if not are_real():
            raise ClientStateError(
                "gevent or eventlet has replaced threads in this process, which the connections to CometMQ need",
                next_step="use the pools prefork, threads or solo",
            )
        with self._lock:
            found = self._open.get(settings)
            if found is None:
                found = SyncSession(settings, self._doubts.setdefault(settings, OrderedDict()))
                self._open[settings] = found
            found.users += 1
            return found

    def release(self, session: SyncSession) -> None:
        """End a use of a session; the last user closes it."""
        if session.pid != os.getpid():
            return
        with self._lock:
            session.users -= 1
            if session.users or self._open.get(session.settings) is not session:
                return
            del self._open[session.settings]
            if not self._doubts[session.settings]:
                del self._doubts[session.settings]
        session.close()


SESSIONS: Final = Sessions()
