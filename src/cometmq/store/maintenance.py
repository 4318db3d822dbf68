"""Maintenance: the background tasks of a running store.

The tasks write blocks of derived data, flush the log, save checkpoints and delete expired files.

Derived data can always be rebuilt from the log. While the disk has no space for it, messages are refused, so that
pending data uses only a limited amount of memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

from cometmq.limits import INDEX_BLOCK_KEYS, MAX_INDEX_WAITING_KEYS
from cometmq.periodic import Periodic
from cometmq.store.checkpoints import Checkpoints
from cometmq.store.clock_check import ClockCheck
from cometmq.store.errors import StoreClosedError, StoreError, StoreFailedError
from cometmq.store.log.commit_log import store_error
from cometmq.store.log.flush import FlushService
from cometmq.store.queue.consume_queue import ConsumeQueue
from cometmq.store.recovery.opening import OpenedStore
from cometmq.store.retention import Retention
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")

_INTERVALS_AFTER_A_CRASH: Final = 5
"""Number of checkpoint intervals before the first checkpoint of a store that was recovered after a crash.

Then thousands of clients return within a second, and the threads that write and flush the recovered queues would take
processor time from their answers.
"""


class Maintenance:
    """Runs the background tasks of one store."""

    def __init__(self, opened: OpenedStore, flush: FlushService) -> None:
        self._opened = opened
        self._flush = flush
        self._config = opened.config
        self._clock = opened.clock
        self._disk = opened.disk
        self._repeated: list[Periodic] = []
        self._next_block: asyncio.Handle | None = None
        self.checkpoints = Checkpoints(opened, flush, self._write_index_for_checkpoint, self._derived_failed)
        self._closing = False
        self._derived_error: StoreError | None = None
        self._is_reported = False
        """True from the first failure until everything is written: each refused message tries again."""
        self.retention = Retention(opened, flush, self._write_units_below)
        self.clock_check = ClockCheck(opened.log, opened.clock)

    # --- derived blocks -----------------------------------------------------------------------
    def write_units(self, queue: ConsumeQueue) -> bool:
        """Write the pending units of one queue. Return False if this failed."""
        try:
            queue.write_pending(self._disk)
        except OSError as error:
            self._derived_failed(error, f"the queue files of {queue.topic}")
            return False
        return True

    def write_index(self) -> None:
        """Write the pending index entries."""
        index = self._opened.index
        if index is None:
            return
        try:
            index.write_pending()
        except OSError as error:
            self._derived_failed(error, "the index")

    def write_index_in_blocks(self) -> None:
        """Write a block of the pending index entries. The remaining entries are written in later rounds of the event
        loop.
        """
        index = self._opened.index
        if index is None or self.index_is_behind:
            return
        try:
            index.write_block()
            while index.committed and index.many_keys > MAX_INDEX_WAITING_KEYS:
                index.write_block()
        except OSError as error:
            self._derived_failed(error, "the index")
            return
        if index.committed and index.many_keys > INDEX_BLOCK_KEYS and self._repeated:
            self._next_block = asyncio.get_running_loop().call_soon(self._write_next_block)

    @property
    def index_is_behind(self) -> bool:
        """True if there are more pending entries than one round of the event loop writes."""
        return self._next_block is not None

    def _write_next_block(self) -> None:
        self._next_block = None
        self.write_index_in_blocks()

    def write_derived(self) -> bool:
        """Write all pending data. Return False if this failed."""
        queues = self._opened.queues
        waiting, queues.dirty = queues.dirty, []
        queues.changed.update(dict.fromkeys(waiting))
        self._derived_error = None
        for written, queue in enumerate(waiting):
            if not self.write_units(queue):
                queues.dirty += waiting[written:]  # after a failure, the others would fail, too
                return False
            queue.dirty = False
        self.write_index()
        is_written = self._derived_error is None
        if is_written and self._is_reported:
            self._is_reported = False
            _log.info("queue files and index can be written again, so messages are accepted")
        return is_written

    def _write_units_below(self, log_offset: int) -> bool:
        """Write the units of all records below a log offset. Return False if this failed."""
        if log_offset <= self.checkpoints.saved_position:
            return True
        return all(self.write_units(queue) for queue in self.checkpoints.held) and self.write_derived()

    def _write_index_for_checkpoint(self) -> bool:
        """Write the pending index entries. Return False if this failed or needs more rounds of the event loop."""
        if self.index_is_behind:
            return False
        self._derived_error = None
        self.write_index()
        return self._derived_error is None

    def _derived_failed(self, error: OSError, what: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            _log.error("%s cannot be written, so messages are refused until it succeeds: %s", what, error)
        self._derived_error = store_error(error, what)

    def refusal(self) -> StoreError | None:
        """Return the reason for refusing messages, if any: a shutdown, a failed flush, derived files that cannot be
        written, or a full disk.
        """
        if self._closing:
            return StoreClosedError("the store is closed")
        if self._flush.failure is not None:
            return self._flush.failure
        if self._derived_error is not None and not self.write_derived():
            return self._derived_error
        return self.retention.refusal

    # --- timers -------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the timers on the running event loop."""
        if not self._opened.log.segments:  # so that the first message need not wait for a file
            self._opened.log.start_next_segment()
        self._opened.queues.remover.resume()
        self.retention.check_disk()
        self.clock_check.run()
        self._every("checking the clock", self._config.clean_resource_interval / 1000, self.clock_check.run)
        self._every("flushing", self._config.flush_interval_commit_log / 1000, self._flush.begin)
        checkpoint_s = self._config.flush_interval_consume_queue / 1000
        queues = self._opened.queues
        is_recovered = queues.dirty or queues.files.unsynced
        first_s = checkpoint_s * (_INTERVALS_AFTER_A_CRASH if is_recovered else 1)
        self._every("saving a checkpoint", checkpoint_s, self.checkpoints.begin, first_s)
        self._every("retention", self._config.clean_resource_interval / 1000, self.retention.run)

    def _every(self, name: str, seconds: float, work: Callable[[], None], first_s: float | None = None) -> None:
        repeated = Periodic(name, seconds, work, clock=self._clock, first_s=first_s)
        repeated.start()
        self._repeated.append(repeated)

    # --- the end ------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop the timers and flush the store. Record a clean stop if everything is on disk, and close the files."""
        for step in self._last_steps():
            step.run()

    async def close_in_thread(self) -> None:
        """Close the store like :meth:`close`, but wait for the disk in a thread; nobody may use the store any more."""
        for step in self._last_steps():
            await in_thread(step.run)

    def _last_steps(self) -> Iterator[Step[Any]]:
        """Close the store; yield the steps that wait for the disk, which the caller runs."""
        self._closing = True
        for repeated in self._repeated:
            repeated.close()
        if self._next_block is not None:
            self._next_block.cancel()
        self.retention.stop()
        self.checkpoints.stop()
        self._flush.stop()
        yield Step(self.checkpoints.end_thread)
        self.checkpoints.end()
        opened = self._opened
        try:
            can_save = not self.checkpoints.failed and not opened.queues.has_pending_deletions
            yield (written := Step(self.write_derived))
            clean = written.result() and can_save
            yield (flushed := Step(self._flush.flush_rest))
            self._flush.end(flushed.result())
            if clean:
                yield (saved := Step(self._save_clean))
                saved.result()
        except (StoreFailedError, OSError) as error:
            _log.error("the store was not stopped cleanly; the next start recovers it: %s", error)
        finally:
            opened.queues.remover.close()
            if opened.index is not None:
                opened.index.close()
            opened.queues.files.close()
            opened.log.close()
            opened.lock.release()

    def _save_clean(self) -> None:
        self.checkpoints.save_now()
        (self._config.root / "abort").unlink(missing_ok=True)
        self._opened.known_files.save(self.checkpoints.extents)


class Step(Generic[T]):
    """Blocking work of a stop, which another thread may run."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, and keep its result or its error."""
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        """Return the result, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._result
