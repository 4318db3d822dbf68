"""A transport's use of a session, which ends with the transport even if nobody closes it.

The event loop refers to the receivers of channels, so these refer to their channels weakly. Otherwise nothing would
ever be collected, and the messages of a consumer that is gone would be renewed for hours.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from kombu.transport import virtual

from cometmq.integrations.kombu.errors import CONNECTION_ERRORS, RefusedError
from cometmq.integrations.kombu.sessions import SESSIONS, SyncSession

if TYPE_CHECKING:
    from cometmq.integrations.kombu.receiver import Receiver


class Use:
    """A use of a session, from its acquisition to ``end``.

    If the transport is collected before, a ``ResourceWarning`` names the connection, and the use ends.
    """

    def __init__(self, transport: object, session: SyncSession) -> None:
        self.session: Final = session
        self.receivers: Final[set[Receiver]] = set()
        """The open receivers of the transport's channels."""
        self._finalizer = weakref.finalize(transport, _forgotten, session, self.receivers)
        self._finalizer.atexit = False

    def end(self) -> None:
        """End the use; in a forked child, leave the session to the parent."""
        self._finalizer.detach()
        SESSIONS.release(self.session)


def _forgotten(session: SyncSession, receivers: set[Receiver]) -> None:
    """End the use of a transport that was collected; the garbage collector calls this in any thread."""
    if session.pid != os.getpid():
        return
    with suppress(RuntimeError):  # Python exits, and the event loop is closed
        session.soon(_end_in_thread, session, receivers)
    warnings.warn(
        f"the connection to cometmq://{session.settings.namesrv} was not closed: use it inside `with`, or call "
        "release()",
        ResourceWarning,
        stacklevel=2,
    )


def _end_in_thread(session: SyncSession, receivers: set[Receiver]) -> None:
    """End the use in a thread: the event loop must not wait for a session that opens or closes."""
    with suppress(RuntimeError):  # Python exits
        threading.Thread(target=_end, args=(session, receivers), name="cometmq-forgotten", daemon=True).start()


def _end(session: SyncSession, receivers: set[Receiver]) -> None:
    try:
        for receiver in receivers:
            with suppress(*CONNECTION_ERRORS, RefusedError):  # the broker gives the messages back without its client
                session.run(receiver.close(tuple))
    finally:
        SESSIONS.release(session)


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a method without keeping its object; it returns 0 after that is collected."""
    found = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        bound = found()
        return 0 if bound is None else bound(*args)

    return call


class QoS(virtual.QoS):
    """Kombu's prefetch limit without its function for the end of the process, which refers to the channel."""

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        super().__init__(channel, prefetch_count)
        self._on_collect.cancel()
