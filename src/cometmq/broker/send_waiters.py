"""Answers that wait until their messages are as safe as the broker was configured to make them.

With SYNC_FLUSH for the flush that covers them (``GroupCommitService``'s waiters), with SYNC_MASTER for a slave
that has them, with both for both at the same time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from cometmq.broker.answers import PendingSend, SendAnswers
from cometmq.broker.replication.group_transfer import GroupTransferService
from cometmq.broker.send_targets import SendHeader
from cometmq.clock import Clock, TimerHandle
from cometmq.limits import MAX_UNFLUSHED_CONNECTION_BYTES, MAX_UNFLUSHED_TOTAL_BYTES
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.errors import StoreError
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

Done = Callable[[ResponseCode, StoreError | None], None]
"""Told the code of the answer, or why the disk does not keep what was stored."""

SEND_OVERHEAD_BYTES: Final = 512
"""Memory that one waiting answer holds beside the message's body and the texts of its request."""


def _held_bytes(send: PendingSend) -> int:
    """What one waiting answer counts: its message, and every text of the request that is kept with it."""
    request = send.request
    header: SendHeader = request.header
    texts = (header.producer_group, header.topic, header.default_topic, header.properties, request.language)
    return send.size_bytes + SEND_OVERHEAD_BYTES + sum(len(text) for text in texts if isinstance(text, str))


class SendWaiters:
    """The answers of each turn, kept until its messages are safe, cannot be, or it takes too long.

    :param transfers: who tells what slaves have; ``None`` when nobody waits for them.
    :param timeout_s: how long a flush is waited for.
    """

    def __init__(
        self,
        store: MessageStore,
        transfers: GroupTransferService | None,
        answers: SendAnswers,
        *,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self._store = store
        self._transfers = transfers
        self._answers = answers
        self._clock = clock
        self.timeout_s: Final = timeout_s
        self._total_bytes = 0
        self._bytes_of: dict[ServerConnection, int] = {}
        self._nothing_waits: asyncio.Event = asyncio.Event()
        self._nothing_waits.set()
        self.needed: Final = store.sync_flush or transfers is not None
        """Whether anything waits at all."""

    def full(self, connection: ServerConnection) -> bool:
        """Whether so much waits, in all or of this connection, that no more may be taken."""
        return (
            self._total_bytes >= MAX_UNFLUSHED_TOTAL_BYTES
            or self._bytes_of.get(connection, 0) >= MAX_UNFLUSHED_CONNECTION_BYTES
        )

    def add(self, position: int, sends: list[PendingSend]) -> None:
        """Answer ``sends`` once the log is safe up to ``position``, or with a warning when it is not in time."""
        if not sends:
            return
        self._nothing_waits.clear()
        held: dict[ServerConnection, int] = {}
        for send in sends:
            held[send.connection] = held.get(send.connection, 0) + _held_bytes(send)
        for connection, size in held.items():
            self._total_bytes += size
            self._bytes_of[connection] = self._bytes_of.get(connection, 0) + size
        waiting = self._wait(position, partial(self._finish, sends, held))
        if self._store.sync_flush:
            waiting.timer = self._clock.call_later(self.timeout_s, waiting.flush_timed_out)

    def when_safe(
        self, position: int, callback: Callable[[StoreError | None], None], late: Callable[[], None] | None
    ) -> None:
        """Tell a service of the broker that the log is safe up to ``position``, or why the disk does not keep it.

        It is told so as well when no slave has it in time: what a service stores is stored all the same.

        :param late: called before that when the flush takes longer than ``timeout_s``.
        """
        timer = None
        if late is not None and self._store.sync_flush:
            timer = self._clock.call_later(self.timeout_s, late)

        def safe(_code: ResponseCode, error: StoreError | None) -> None:
            if timer is not None:
                timer.cancel()
            callback(error)

        self._wait(position, safe)

    def _wait(self, position: int, done: Done) -> _Waiting:
        waiting = _Waiting(done, flush=self._store.sync_flush, transfer=self._transfers is not None)
        if self._store.sync_flush:
            self._store.when_flushed(position, waiting.flushed)
        if self._transfers is not None:
            self._transfers.when_replicated(position, waiting.replicated)
        return waiting

    def _finish(
        self, sends: list[PendingSend], held: dict[ServerConnection, int], code: ResponseCode, error: StoreError | None
    ) -> None:
        """Answer the sends of one turn and let go of them."""
        for connection, size in held.items():
            self._total_bytes -= size
            left = self._bytes_of[connection] - size
            if left:
                self._bytes_of[connection] = left
            else:
                del self._bytes_of[connection]
        if error is not None:
            _log.error("%d messages are not acknowledged, their flush failed: %s", len(sends), error)
            self._answers.refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}", sends)
        elif code == ResponseCode.SUCCESS:
            self._answers.stored(sends)
        else:
            self._answers.stored_but(code, sends)
        if not self._total_bytes:
            self._nothing_waits.set()

    async def finished(self) -> None:
        """Wait until every answer is given."""
        await self._nothing_waits.wait()


class _Waiting:
    """What was stored in one turn: done once, when neither the disk nor a slave is waited for any longer."""

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
        if self._flush and self._code == ResponseCode.SUCCESS:  # of two codes the slave's counts
            self._code = ResponseCode.FLUSH_DISK_TIMEOUT
        self._flush = False
        self._end(None)

    def replicated(self, code: ResponseCode) -> None:
        if code != ResponseCode.SUCCESS:
            self._code = code
        self._transfer = False
        self._end(None)

    def _end(self, error: StoreError | None) -> None:
        if self._done is not None and (error is not None or not (self._flush or self._transfer)):
            done, self._done = self._done, None
            if self.timer is not None:
                self.timer.cancel()
            done(self._code, error)
