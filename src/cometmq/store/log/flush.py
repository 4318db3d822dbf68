"""FlushService: flushes the log at intervals or on request (``GroupCommitService``, ``FlushRealTimeService``).

One flush at a time runs in a thread and covers everything written before it started; the next flush covers later
writes. A failed flush is final: the kernel may have dropped the pages, so a later success would prove nothing. After a
failure, every waiter and every write gets the error until the store is reopened and recovery has read the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cometmq.clock import Clock
from cometmq.store.errors import StoreError, StoreFailedError
from cometmq.store.log.commit_log import CommitLog

_log = logging.getLogger(__name__)
Flushed = Callable[[StoreError | None], None]


class FlushService:
    """The position up to which the log is flushed, and the callbacks that wait for flushes."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began = 0.0
        self._waiting: deque[tuple[int, Flushed]] = deque()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="cometmq-store-flush")
        self._running = False
        self._closed = False
        self._unseen: OSError | None = None
        """The error of a flush in the thread that the event loop has not seen yet."""
        self.position = log.position
        """Log position below which all data survives a power failure."""
        self.failure: StoreFailedError | None = None
        self.on_flush: Callable[[float], None] | None = None
        """Function that is called with each flush's duration in seconds, including the wait for the event loop."""

    def when_flushed(self, position: int, callback: Flushed) -> None:
        """Call back with ``None`` once the log is flushed up to ``position``, or with the error that prevents it."""
        if self.failure is not None:
            callback(self.failure)
        elif position <= self.position:
            callback(None)
        else:
            self._waiting.append((position, callback))
            self.begin()

    def begin(self) -> None:
        """Start flushing all written data if a flush is due. If a flush is already running, the next one starts after
        it.
        """
        if self._running or self._closed or self.failure is not None or self.position >= self._log.position:
            return
        self._running = True
        loop = asyncio.get_running_loop()
        start, end = self.position, self._log.position
        self._began = self._clock.monotonic()

        def flush() -> None:
            try:
                self._log.flush(start, end)
            except OSError as error:
                self._unseen = error
                loop.call_soon_threadsafe(self._finish, end, error)
            else:
                loop.call_soon_threadsafe(self._finish, end, None)

        self._worker.submit(flush)

    def flush_now(self) -> None:
        """Flush all written data and wait for it; begin no further flush.

        :raises StoreFailedError: the flush failed, now or earlier.
        """
        self.stop()
        self.end(self.flush_rest())

    def stop(self) -> None:
        """Begin no further flush; :meth:`flush_rest` and :meth:`end` must follow."""
        self._closed = True

    def flush_rest(self) -> OSError | None:
        """Wait for the running flush, and flush the rest, blocking and perhaps in a thread; return the error if one of
        them failed.
        """
        self._worker.shutdown()
        if self._unseen is not None:  # the kernel reports it only once
            return self._unseen
        if self.failure is None and self.position < self._log.position:
            try:
                self._log.flush(self.position, self._log.position)
            except OSError as error:
                return error
        return None

    def end(self, error: OSError | None) -> None:
        """Call all waiters, after :meth:`flush_rest`.

        :raises StoreFailedError: a flush failed, now or earlier.
        """
        if error is not None:
            self._fail(error)
        if self.failure is None:
            self.position = self._log.position
        self._call_waiters()
        if self.failure is not None:
            raise self.failure

    def _finish(self, end: int, error: OSError | None) -> None:
        if self._closed:
            return  # flush_rest flushes all of it, or has failed
        self._unseen = None
        self._running = False
        if self.on_flush is not None:
            self.on_flush(self._clock.monotonic() - self._began)
        if error is None:
            self._flushed(end)
        else:
            self._fail(error)
        self._call_waiters()
        if self._waiting:
            self.begin()

    def _flushed(self, end: int) -> None:
        size = self._log.segment_size
        is_past_a_file = end // size > self.position // size
        self.position = end
        if is_past_a_file:
            self._log.rest(end)

    def _fail(self, error: OSError) -> None:
        self.failure = StoreFailedError(
            f"the disk did not keep what was written: {error.strerror or error}",
            next_step="check the disk, then restart the broker",
        )
        _log.error("flushing the log failed; no message is acknowledged until the broker is restarted: %s", error)

    def _call_waiters(self) -> None:
        waiting = self._waiting
        failure = self.failure
        while waiting and (failure is not None or waiting[0][0] <= self.position):
            waiting.popleft()[1](failure)
