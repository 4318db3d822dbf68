"""Responses that wait until their messages are as durable as the configuration requires (``GroupCommitService``).

With SYNC_FLUSH, responses wait until the messages are flushed; with SYNC_MASTER, until slaves have them; in a failover
set, until each counted member has them. With two of these, they wait for both at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Protocol

from cometmq.broker.limits import MAX_UNFLUSHED_CONNECTION_BYTES, MAX_UNFLUSHED_TOTAL_BYTES
from cometmq.broker.turn.answers import PendingSend, PlainAnswers, SendAnswers
from cometmq.broker.turn.group_transfer import Replicated
from cometmq.broker.turn.targets import RefusedError, SendHeader, perhaps_stored
from cometmq.clock import TimerHandle
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

Done = Callable[[ResponseCode, StoreError | None], None]
"""Callback with the response code, or with the error of a failed flush."""

NO_LONGER_MASTER: Final = "service not available now: this broker is no longer the master, send the message again"
"""Answer to a send that a failover set did not confirm while this broker was its master."""

SEND_OVERHEAD_BYTES: Final = 512
"""Memory of a pending response in bytes, in addition to the message body and the request's texts."""


_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
"""The codes with which a client takes its message as stored; with any other code, it sends the message again."""

Safe = Callable[[StoreError | None], None]
"""Callback with ``None`` if messages are as durable as required, or with the reason why they are not."""


class Transfers(Protocol):
    """Reports which messages other brokers have: those of slaves, or of a failover set's members."""

    late_s: float | None
    """Time in seconds after which an internal callback's ``late`` function is called, or ``None`` for never."""

    def when_replicated(self, position: int, callback: Replicated) -> None:
        """Call back once others have the log up to ``position``, or with the reason for giving up."""

    def when_safe(self, position: int, callback: Safe) -> None:
        """Call back like :meth:`when_replicated`, for work of this broker that no request waits for."""


def _held_bytes(send: PendingSend | PlainAnswers) -> Iterator[tuple[ServerConnection, int]]:
    """Yield how much memory a pending response uses (messages and the request's texts), by connection."""
    if isinstance(send, PlainAnswers):
        for connection, frames, opaques, requests, body_bytes in send.connections:
            yield connection, body_bytes + len(frames) + len(opaques) + requests * SEND_OVERHEAD_BYTES
        return
    request = send.request
    header: SendHeader = request.header
    texts = (header.producer_group, header.topic, header.default_topic, header.properties, request.language)
    text_bytes = sum(len(text) for text in texts if isinstance(text, str))
    yield send.connection, send.size_bytes + SEND_OVERHEAD_BYTES + text_bytes


class SendWaiters:
    """The responses of each turn that wait until their messages are durable, have failed or have timed out.

    :param transfers: reports the progress of other brokers; ``None`` if no response waits for them.
    :param timeout_s: maximum time to wait for a flush.
    """

    def __init__(
        self,
        store: MessageStore,
        transfers: Transfers | None,
        answers: SendAnswers,
        *,
        timeout_s: float,
    ) -> None:
        self.store: Final = store
        self._transfers = transfers
        self.answers: Final = answers
        self._clock = store.clock
        self.timeout_s: Final = timeout_s
        self._total_bytes = 0
        self.waiting = 0
        """Number of turns whose responses are pending."""
        self._bytes_of: dict[ServerConnection, int] = {}
        self._nothing_waits: asyncio.Event = asyncio.Event()
        self._nothing_waits.set()
        self.needed: Final = store.sync_flush or transfers is not None
        """True if responses must wait."""
        limits = [timeout_s] if store.sync_flush else []
        if transfers is not None and transfers.late_s is not None:
            limits.append(transfers.late_s)
        self.late_s: Final = min(limits, default=None)
        """Time in seconds after which a request that waits for an internal callback is answered, or ``None`` if it
        never waits for long.
        """

    def full(self, connection: ServerConnection) -> bool:
        """Return whether too many messages are pending to accept more, in total or on this connection."""
        return (
            self._total_bytes >= MAX_UNFLUSHED_TOTAL_BYTES
            or self._bytes_of.get(connection, 0) >= MAX_UNFLUSHED_CONNECTION_BYTES
        )

    def add(self, position: int, sends: list[PendingSend | PlainAnswers]) -> None:
        """Answer ``sends`` once the log is durable up to ``position``, or with a warning after the timeout."""
        if not sends:
            return
        self.waiting += 1
        self._nothing_waits.clear()
        held: dict[ServerConnection, int] = {}
        for send in sends:
            for connection, size in _held_bytes(send):
                held[connection] = held.get(connection, 0) + size
        for connection, size in held.items():
            self._total_bytes += size
            self._bytes_of[connection] = self._bytes_of.get(connection, 0) + size
        waiting = self._wait(position, partial(self._finish, sends, held))
        if self.store.sync_flush:
            waiting.timer = self._clock.call_later(self.timeout_s, waiting.flush_timed_out)

    def when_safe(self, position: int, callback: Safe, late: Callable[[], None] | None) -> None:
        """Call an internal callback once the log is durable up to ``position``, or with the error that prevents it.

        If slaves do not have the messages in time, the callback is called as if they were replicated. A failover set
        gives no such answer: the callback waits as long as this broker is the master.

        :param late: called first, after ``late_s``, if a request waits for the callback.
        """
        timer = None
        if late is not None and self.late_s is not None:
            timer = self._clock.call_later(self.late_s, late)

        def safe(_code: ResponseCode, error: StoreError | None) -> None:
            if timer is not None:
                timer.cancel()
            callback(error)

        waiting = self._wait_for_flush(position, safe)
        if self._transfers is not None:
            self._transfers.when_safe(position, waiting.safe)

    def _wait(self, position: int, done: Done) -> _Waiting:
        waiting = self._wait_for_flush(position, done)
        if self._transfers is not None:
            self._transfers.when_replicated(position, waiting.replicated)
        return waiting

    def _wait_for_flush(self, position: int, done: Done) -> _Waiting:
        waiting = _Waiting(done, flush=self.store.sync_flush, transfer=self._transfers is not None)
        if self.store.sync_flush:
            self.store.when_flushed(position, waiting.flushed)
        return waiting

    def _finish(
        self,
        sends: list[PendingSend | PlainAnswers],
        held: dict[ServerConnection, int],
        code: ResponseCode,
        error: StoreError | None,
    ) -> None:
        """Answer the send requests of a turn, and remove them from the counts."""
        self.waiting -= 1
        for connection, size in held.items():
            self._total_bytes -= size
            left = self._bytes_of[connection] - size
            if left:
                self._bytes_of[connection] = left
            else:
                del self._bytes_of[connection]
        if error is not None:
            requests = sum(1 if isinstance(send, PendingSend) else send.requests for send in sends)
            _log.error("%d sends were not acknowledged because their flush failed: %s", requests, error)
            self.answers.refused(perhaps_stored(error), sends)
        elif code == ResponseCode.SUCCESS:
            self.answers.stored(sends)
        elif code in _STORED:
            self.answers.answer_with_warning(code, sends)
        else:
            self.answers.refused(RefusedError(code, NO_LONGER_MASTER), sends)
        if not self._total_bytes:
            self._nothing_waits.set()

    async def finished(self) -> None:
        """Wait until every request has been answered."""
        await self._nothing_waits.wait()


class _Waiting:
    """The pending responses of a turn. They are sent once they wait for neither the disk nor a slave."""

    __slots__ = ("_code", "_done", "_flush", "_transfer", "timer")

    def __init__(self, done: Done, *, flush: bool, transfer: bool) -> None:
        self._done: Done | None = done
        self._flush = flush
        self._transfer = transfer
        self._code = ResponseCode.SUCCESS
        self.timer: TimerHandle | None = None

    def flushed(self, error: StoreError | None) -> None:
        self._flush = False
        self._end(error)

    def flush_timed_out(self) -> None:
        if self._flush and self._code == ResponseCode.SUCCESS:  # the slave's code has precedence
            self._code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._flush = False
        self._end(None)

    def replicated(self, code: ResponseCode) -> None:
        if code != ResponseCode.SUCCESS:
            self._code = code
        self._transfer = False
        self._end(None)

    def safe(self, error: StoreError | None) -> None:
        self._transfer = False
        self._end(error)

    def _end(self, error: StoreError | None) -> None:
        if self._done is not None and (error is not None or not (self._flush or self._transfer)):
            done, self._done = self._done, None
            if self.timer is not None:
                self.timer.cancel()
            done(self._code, error)
