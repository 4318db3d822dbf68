"""SYNC_FLUSH: answers that wait for the flush which covers their messages (``GroupCommitService``'s waiters)."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cometmq.broker.answers import PendingSend, SendAnswers
from cometmq.broker.send_targets import SendHeader
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_UNFLUSHED_CONNECTION_BYTES, MAX_UNFLUSHED_TOTAL_BYTES
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

SEND_OVERHEAD_BYTES: Final = 512
"""Memory that one waiting answer holds beside the message's body and the texts of its request."""


def _held_bytes(send: PendingSend) -> int:
    """What one waiting answer counts: its message, and every text of the request that is kept with it."""
    request = send.request
    header: SendHeader = request.header
    texts = (header.producer_group, header.topic, header.default_topic, header.properties, request.language)
    return send.size_bytes + SEND_OVERHEAD_BYTES + sum(len(text) for text in texts if isinstance(text, str))


class FlushWaiters:
    """The answers of each turn, kept until its flush is done, has failed, or takes too long."""

    def __init__(self, store: MessageStore, answers: SendAnswers, *, clock: Clock, timeout_s: float) -> None:
        self._store = store
        self._answers = answers
        self._clock = clock
        self._timeout_s = timeout_s
        self._total_bytes = 0
        self._bytes_of: dict[ServerConnection, int] = {}
        self._nothing_waits: asyncio.Event = asyncio.Event()
        self._nothing_waits.set()

    def full(self, connection: ServerConnection) -> bool:
        """Whether so much waits, in all or of this connection, that no more may be taken."""
        return (
            self._total_bytes >= MAX_UNFLUSHED_TOTAL_BYTES
            or self._bytes_of.get(connection, 0) >= MAX_UNFLUSHED_CONNECTION_BYTES
        )

    def add(self, position: int, sends: list[PendingSend]) -> None:
        """Answer ``sends`` when the log is flushed up to ``position``, or with code 10 after the timeout."""
        if not sends:
            return
        self._nothing_waits.clear()
        for send in sends:
            size = _held_bytes(send)
            self._total_bytes += size
            self._bytes_of[send.connection] = self._bytes_of.get(send.connection, 0) + size
        turn = _FlushTurn(self, sends)
        turn.timer = self._clock.call_later(self._timeout_s, turn.timed_out)
        self._store.when_flushed(position, turn.flushed)

    def finish(self, sends: list[PendingSend], error: StoreError | None, *, timed_out: bool = False) -> None:
        """Answer the sends of one turn and let go of them."""
        for send in sends:
            size = _held_bytes(send)
            self._total_bytes -= size
            left = self._bytes_of[send.connection] - size
            if left:
                self._bytes_of[send.connection] = left
            else:
                del self._bytes_of[send.connection]
        if timed_out:
            self._answers.stored_but(ResponseCode.FLUSH_DISK_TIMEOUT, sends)
        elif error is None:
            self._answers.stored(sends)
        else:
            _log.error("%d messages are not acknowledged, their flush failed: %s", len(sends), error)
            self._answers.refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}", sends)
        if not self._total_bytes:
            self._nothing_waits.set()

    async def finished(self) -> None:
        """Wait until every answer is given."""
        await self._nothing_waits.wait()


class _FlushTurn:
    """The sends of one turn: answered once, by whichever comes first."""

    __slots__ = ("_sends", "_waiters", "timer")

    def __init__(self, waiters: FlushWaiters, sends: list[PendingSend]) -> None:
        self._waiters = waiters
        self._sends: list[PendingSend] | None = sends
        self.timer: TimerHandle | None = None

    def flushed(self, error: StoreError | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self._sends is not None:
            sends, self._sends = self._sends, None
            self._waiters.finish(sends, error)

    def timed_out(self) -> None:
        if self._sends is not None:
            sends, self._sends = self._sends, None
            self._waiters.finish(sends, None, timed_out=True)
