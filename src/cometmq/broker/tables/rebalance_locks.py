"""Locks on queues that are consumed in order, and their file (``RebalanceLockManager``).

Members of an orderly group read only queues for which they hold a lock. A lock expires
:data:`~cometmq.broker.limits.LOCK_SECONDS` after its last renewal, twice as long as clients trust it, so that a queue
never has two readers, even if a member crashes. Closing a connection releases no lock, since the client may continue
over another connection. A member that unregisters releases all its locks, because Java's client drops its delayed
unlocks when it shuts down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

import msgspec

from cometmq.broker.limits import LOCK_SECONDS, MAX_LOCKED_QUEUES, TABLE_ROWS_PER_SLICE
from cometmq.broker.slices import Slice, batches
from cometmq.broker.tables.table_file import set_aside
from cometmq.clock import Clock
from cometmq.limits import LOCK_TRUST_SECONDS
from cometmq.remoting.bodies import MessageQueue
from cometmq.store.failure_log import FailureLog

_log = logging.getLogger(__name__)


class _Lock(msgspec.Struct, gc=False):
    client_id: str
    renewed_at: float
    """Time of the last renewal in monotonic seconds."""


class HeldQueues(msgspec.Struct, frozen=True, array_like=True):
    """The queues of a topic that a client holds."""

    group: str
    client_id: str
    topic: str
    broker_name: str
    queue_ids: list[int]


class RebalanceLockManager:
    """The queue locks of all groups.

    ``on_change`` is called when a queue is granted to another holder or released.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self.on_change: Callable[[], None] = lambda: None
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}
        self._texts: dict[str, bytes] = {}
        """The file's text for the locks of each group that has not changed since the last write."""
        self._count = 0

    @property
    def count(self) -> int:
        """Number of locks held, including expired locks not yet removed."""
        return self._count

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """Return the client that currently holds a queue, or ``None``."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._clock.monotonic() - lock.renewed_at > LOCK_SECONDS:
            return None
        return lock.client_id

    def try_lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue] | None:
        """Lock queues or renew their locks; return the queues that the client now holds, or ``None`` if there are too
        many locks.

        A queue is granted if it is free, if the client already holds it, or if its lock has expired.
        """
        now = self._clock.monotonic()
        locks = self._groups.get(group, {})
        wanted = dict.fromkeys(queues)
        if self._count + sum(queue not in locks for queue in wanted) > MAX_LOCKED_QUEUES:
            return None
        granted = []
        is_new = False
        for queue in wanted:
            if self.holder(group, queue) not in (None, client_id):
                continue
            lock = locks.get(queue)
            if lock is None:
                self._count += 1
            elif lock.client_id != client_id:
                _log.info(
                    "%s of group %s is now locked by %s, because the lock of %s expired",
                    queue,
                    group,
                    client_id,
                    lock.client_id,
                )
            is_new = is_new or lock is None or lock.client_id != client_id
            locks[queue] = _Lock(client_id, now)
            granted.append(queue)
        if is_new:
            self._groups[group] = locks
            self._texts.pop(group, None)
            self.on_change()
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Release the locks that the client holds on these queues."""
        locks = self._groups.get(group, {})
        self._remove_locks(group, [queue for queue in queues if queue in locks and locks[queue].client_id == client_id])

    def unlock_all(self, group: str, client_id: str) -> None:
        """Release all locks held by a member that leaves its group."""
        locks = self._groups.get(group, {})
        self._remove_locks(group, [queue for queue, lock in locks.items() if lock.client_id == client_id])

    def expire(self) -> Generator[None, None, None]:
        """Remove expired locks; pause after each slice."""
        horizon = self._clock.monotonic() - LOCK_SECONDS
        part = Slice(TABLE_ROWS_PER_SLICE)
        for group in list(self._groups):
            for some in batches(list(self._groups.get(group, {}).items()), TABLE_ROWS_PER_SLICE):
                locks = self._groups.get(group, {})
                self._remove_locks(
                    group, [queue for queue, lock in some if lock.renewed_at < horizon and locks.get(queue) is lock]
                )
                if part.ends_after(len(some)):
                    yield

    def _remove_locks(self, group: str, queues: Iterable[MessageQueue]) -> None:
        dropped = dict.fromkeys(queues)
        if not dropped:
            return
        locks = self._groups[group]
        for queue in dropped:
            del locks[queue]
        self._count -= len(dropped)
        if not locks:
            del self._groups[group]
        self._texts.pop(group, None)
        self.on_change()

    # --- over restarts ------------------------------------------------------------------------
    def held(self) -> list[HeldQueues]:
        """Return all locks, without their times."""
        return [some for group in self._groups for some in self._held_of(group)]

    def _held_of(self, group: str) -> list[HeldQueues]:
        found: dict[tuple[str, str, str], list[int]] = {}
        for queue, lock in self._groups[group].items():
            found.setdefault((lock.client_id, queue.topic, queue.broker_name), []).append(queue.queue_id)
        return [HeldQueues(group, *names, numbers) for names, numbers in found.items()]

    def text(self) -> bytes:
        """Return all locks as JSON, encoding only groups with changed locks again."""
        for group in self._groups:
            if group not in self._texts:
                self._texts[group] = msgspec.json.encode(self._held_of(group))[1:-1]
        return b"[%s]" % b",".join([self._texts[group] for group in self._groups])

    def restore(self, held: Iterable[HeldQueues]) -> None:
        """Restore the locks from before a restart; they last as long as their holders rely on them."""
        renewed_at = self._clock.monotonic() - LOCK_SECONDS + LOCK_TRUST_SECONDS
        for some in held:
            locks = self._groups.setdefault(some.group, {})
            for queue_id in some.queue_ids:
                locks[MessageQueue(some.topic, some.broker_name, queue_id)] = _Lock(some.client_id, renewed_at)
        self._texts.clear()
        self._count = sum(map(len, self._groups.values()))


class LockFile:
    """The file ``comet/locks.json``, which prevents queues from being granted after a restart while their holders still
    read them.

    The file is written when a lock changes hands, before the request for the lock is answered; renewals are not
    written. The file is not flushed, since other requests would wait for it; after a power cut, the locks have expired
    by the time the machine is up again. (Apache's broker forgets all locks.)

    ``on_due`` is called when the file needs to be written.
    """

    def __init__(self, locks: RebalanceLockManager, path: Path) -> None:
        self._locks = locks
        self._path = path
        self._due = False
        self._failures = FailureLog(_log)
        self.on_due: Callable[[], None] = self.save
        locks.on_change = self._changed

    def load(self) -> None:
        """Load the locks from before the restart; if the file is missing or damaged, there are none."""
        try:
            held = msgspec.json.decode(self._path.read_bytes(), type=list[HeldQueues])
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("%s", set_aside(self._path, f"cannot be used ({error}), all queue locks are lost"))
            return
        self._locks.restore(held)

    def _changed(self) -> None:
        self._due = True
        self.on_due()

    def save(self) -> None:
        """Write the file if a lock changed hands; if the disk is full or broken, the next call tries again."""
        if self._due:
            fresh = self._path.with_name(self._path.name + ".tmp")
            try:
                fresh.parent.mkdir(parents=True, exist_ok=True)
                fresh.write_bytes(self._locks.text())
                fresh.replace(self._path)
                self._due = False
                self._failures.ended(f"write {self._path}")
            except OSError as error:
                self._failures.failed(f"write {self._path}", error)
