"""TableWriter: writes changed tables in a thread, flushing simultaneous changes together.

Theory of operation. At the end of a round of the loop, the changes of each table become one record of its journal. A
thread appends and flushes these records, table after table, always in the same order. This is one *write*. Changes that
arrive during a write are in the next one. A request that changed a table is answered after the write with its change.

Invariants.

* Records reach the journal of a table in the order of the changes.
* A table is written by the thread or by ``write_now``, never by both at the same time.
* When the write of a table fails, the tables after it are not written: no topic is written without earlier deletions.

Fault model. Changes that cannot be written stay in force, and the requests that made them get an error. The next write
contains them again. It begins with the next change, when a request is repeated, and at intervals.

Handlers change tables in the order of the requests. Thousands of requests may wait for one write. They are answered in
their order over many rounds of the loop, a few milliseconds in each.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

from cometmq.broker.limits import MAX_PENDING_CHANGES, SLICES_SECONDS
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError, reason_of
from cometmq.loop import resolver
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.processors import Request, Response, RpcRejectedError
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

OnWritten = Callable[[Exception | None], None]
"""Callback with ``None`` once a change is durable, or with the reason for the failure."""


class NotCopiedError(CometMQError):
    """A change is durable here, but another member of the set that counts has not copied it."""


class _Write(NamedTuple):
    """A set of changes that are written together."""

    due: list[tuple[RowWriter[Any], Callable[[], object]]]
    waiting: list[OnWritten]
    until_durable: list[Callable[[], None]]

    def run(self) -> Exception | None:
        """Write the tables in order until one fails; return the reason for the failure."""
        failure: Exception | None = None
        for table, write in self.due:
            if failure is None:
                try:
                    write()
                except Exception as error:
                    _log.exception("cannot write a table because of an internal error")
                    table.note_failure(error)
                failure = table.failure
            else:
                table.note_failure(failure)
        return failure


class TableWriter:
    """Writes tables in a thread, in a fixed order.

    :param schedule: starts a round of the loop unless one has started; each round must end with ``end_round``.
    :param on_written: called after each write.
    """

    def __init__(
        self, tables: Sequence[RowWriter[Any]], schedule: Callable[[], None], on_written: Callable[[], None]
    ) -> None:
        self._tables: Final = tables
        self._schedule = schedule
        self._on_written = on_written
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-tables")
        self._is_due = False
        self.changes = 0
        """Number of calls to ``changed``."""
        self._waiting: list[OnWritten] = []
        self._until_durable: list[Callable[[], None]] = []
        self._written: deque[Callable[[], None]] = deque()
        """Callbacks of finished writes that have not been called yet."""
        self._write: _Write | None = None
        """The write that the thread is executing."""
        self._running: Future[Exception | None] | None = None
        """The result of the thread's current write."""
        self._between: list[Callable[[], None]] = []
        self.when_others_have: Callable[[OnWritten], None] | None = None
        """Calls a function once the other members of a set have copied all changes made so far."""

    # --- changes ------------------------------------------------------------------------------
    def require_room(self) -> None:
        """Refuse a request before it changes a table if too many requests are waiting for the disk.

        :raises RpcRejectedError: the client must try again.
        """
        if len(self._waiting) + len(self._until_durable) >= MAX_PENDING_CHANGES:
            raise RpcRejectedError(
                ResponseCode.SYSTEM_BUSY,
                f"{MAX_PENDING_CHANGES} changes to topics and groups are waiting for the disk; check the broker's "
                "disk, then try again",
            )

    def changed(self) -> None:
        """Record that a table changed in this round."""
        self.changes += 1
        self._is_due = True
        self._schedule()

    def when_written(self, callback: OnWritten) -> None:
        """Call a function after one attempt to write all changes made so far."""
        self._waiting.append(callback)
        self._is_due = True
        self._schedule()

    def when_durable(self, work: Callable[[], None]) -> None:
        """Call a function once all changes made so far are durable, even if that takes several attempts.

        Functions are called in the order in which they were passed.
        """
        self._until_durable.append(work)
        self._is_due = True
        self._schedule()

    def when_copied(self, callback: OnWritten) -> None:
        """Call a function once all changes made so far are durable, in a set also at the other members in sync."""

        def written(failure: Exception | None) -> None:
            if failure is None and self.when_others_have is not None:
                self.when_others_have(callback)
            else:
                callback(failure)

        self.when_written(written)

    async def others_have(self) -> str:
        """Wait until the other members of a set have copied all changes made so far, also those of other tables.

        Return the reason why they do not have them, or an empty text.
        """
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.when_copied(resolver(done))
        failure = await done
        return str(failure) if isinstance(failure, NotCopiedError) else ""

    def answer(self, connection: ServerConnection, request: Request[Any]) -> None:
        """Answer a request as :meth:`when_copied` does, or with the reason why its changes are not durable."""
        self.when_copied(lambda failure: connection.respond(request, change_response(failure)))

    def answer_if_changed(self, changes: int, answer: Callable[[], None]) -> None:
        """Answer immediately if ``changes`` is still the number of changes; otherwise answer after the write.

        If too many requests are waiting, answer immediately, too. Use this only for requests that clients repeat
        anyway.
        """
        if self.changes == changes or len(self._waiting) >= MAX_PENDING_CHANGES:
            answer()
        else:
            self.when_written(lambda _failure: answer())

    async def finish(self) -> None:
        """Attempt once to write all changes made so far."""
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.when_written(resolver(done))
        await done

    def continue_with(self, work: Callable[[], None]) -> None:
        """Continue a long callback in the next round, before other callbacks."""
        self._written.appendleft(work)
        self._schedule()

    def between_writes(self, work: Callable[[], None]) -> None:
        """Call a function while no table is being written: now, or after the current write."""
        if self._running is None:
            work()
        else:
            self._between.append(work)

    # --- writing ------------------------------------------------------------------------------
    def end_round(self) -> None:
        """Start writing the changes; if the thread is busy, the next write starts when it has finished."""
        if self._written:
            self._call_written(SYSTEM_CLOCK.monotonic() + SLICES_SECONDS)
        if self._is_due and self._running is None:
            self._write = self._take_changes()
            if not self._write.due:
                self._complete_write(None)
                return
            loop = asyncio.get_running_loop()
            self._running = self._worker.submit(self._write.run)
            self._running.add_done_callback(lambda done: loop.call_soon_threadsafe(self._finish_write, done))

    def write_now(self) -> None:
        """Write all changes now; callbacks are called at the end of the next round."""
        if self._running is not None:
            self._complete_write(self._running.result())
        self._write = self._take_changes()
        self._complete_write(self._write.run())

    def close(self) -> None:
        """Write all changes, call all callbacks, and end the thread."""
        self.write_now()
        self._worker.shutdown()
        self._call_written(math.inf)

    def _take_changes(self) -> _Write:
        self._is_due = False
        waiting, self._waiting = self._waiting, []
        until_durable, self._until_durable = self._until_durable, []
        due = [(table, write) for table in self._tables if (write := table.begin_write()) is not None]
        return _Write(due, waiting, until_durable)

    def _finish_write(self, running: Future[Exception | None]) -> None:
        if running is self._running:  # otherwise write_now has waited for the write
            self._complete_write(running.result())
            self.end_round()

    def _complete_write(self, failure: Exception | None) -> None:
        """Finish a write and schedule its callbacks."""
        write = self._write
        assert write is not None
        self._write = self._running = None
        for table, _ in write.due:
            table.end_write()
        between, self._between = self._between, []
        for work in between:
            work()
        self._on_written()
        if failure is None:
            self._written += write.until_durable
        else:
            self._until_durable[:0] = write.until_durable
        self._written += [partial(callback, failure) for callback in write.waiting]
        if self._written:
            self._schedule()

    def _call_written(self, until: float) -> None:
        """Call the callbacks of finished writes as long as this round of the event loop has time left."""
        while self._written:
            callback = self._written.popleft()
            try:
                callback()
            except Exception:
                _log.exception("a callback failed after a table was written")
            if self._written and SYSTEM_CLOCK.monotonic() >= until:
                self._schedule()
                return


def change_response(failure: Exception | None) -> Response:
    """Return the response to a request that changed a table: success, or the reason why the change is not durable."""
    if failure is None:
        return Response()
    if isinstance(failure, NotCopiedError):
        return Response(ResponseCode.SYSTEM_ERROR, remark=str(failure))
    why = reason_of(failure) if isinstance(failure, OSError) else failure
    return Response(
        ResponseCode.SYSTEM_ERROR,
        remark=f"the change is in effect but not on disk ({why}), and is lost if the broker stops now; "
        "free some space or repair the disk, then repeat the request",
    )
