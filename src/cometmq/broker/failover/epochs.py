"""EpochLog: the epochs of a log, as marker records in the log itself.

A new master first appends a marker with its epoch. A marker is a message of Apache's format in queue 0 of the topic
:data:`~cometmq.message.names.EPOCHS_TOPIC`, so recovery, replication, backups and Apache's broker need no special case,
and the queue is the list of the epochs.

A unit remains in its queue after retention has deleted its record. So the epoch is in the unit, too: the marker's tag
is a text whose Java hash, the unit's tags code, is :data:`_BASE` + the epoch. A queue that is made anew from the log
gets the same units.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cometmq.broker.failover.history import History
from cometmq.broker.limits import MAX_FAILOVER_EPOCHS
from cometmq.message.ids import tags_code
from cometmq.message.names import EPOCHS_TOPIC
from cometmq.message.properties import TAGS, join_properties
from cometmq.store.log.commit_log import store_error
from cometmq.store.message_store import MessageStore
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT, UNIT_DTYPE
from cometmq.store.write_batch import NewRecord

_RADIX: Final = 31
"""The factor of Java's string hash."""
_DIGITS: Final = 5
_ZERO: Final = ord("0")
_BASE: Final = tags_code("0" * _DIGITS)
_MOST: Final = _RADIX**_DIGITS - 1
"""The highest epoch; with one failover each minute, it is reached after 54 years."""
_HOST: Final = bytes(8)
"""Address 0.0.0.0:0, so that a marker's bytes do not depend on the machine."""


def epoch_tag(epoch: int) -> str:
    """Return the text whose Java hash is :data:`_BASE` + ``epoch``.

    :raises ValueError: the epoch is not from 1 to 28,629,150.
    """
    if not 0 < epoch <= _MOST:
        raise ValueError(f"an epoch must be from 1 to {_MOST}, not {epoch}")
    digits = []
    for _ in range(_DIGITS):
        epoch, digit = divmod(epoch, _RADIX)
        digits.append(chr(_ZERO + digit))
    return "".join(reversed(digits))


class EpochLog:
    """The epochs in one store's log."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._queue = store.queue(EPOCHS_TOPIC, 0)
        self._epochs: tuple[tuple[int, int], ...] = ()
        self._read: tuple[int, int] | None = None

    def history(self) -> History:
        """Return the epochs with the log offsets of their markers, and the ends of the log.

        A marker may be before the log's begin, if retention has deleted it.
        """
        store = self._store
        return History(self._known(), store.max_physical_offset, store.min_physical_offset)

    @property
    def last_epoch(self) -> int:
        """The epoch of the last marker, or 0."""
        epochs = self._known()
        return epochs[-1][0] if epochs else 0

    def _known(self) -> tuple[tuple[int, int], ...]:
        queue = self._queue
        if self._read != (queue.life, queue.committed):
            self._read = queue.life, queue.committed
            self._epochs = self._read_epochs()
        return self._epochs

    def _read_epochs(self) -> tuple[tuple[int, int], ...]:
        queue = self._queue
        epochs: list[tuple[int, int]] = []
        at = max(queue.first_stored, queue.committed - MAX_FAILOVER_EPOCHS)
        while raw := queue.units(at, MAX_FAILOVER_EPOCHS, stored=True):
            units = np.frombuffer(raw, UNIT_DTYPE)
            at += len(units)
            for start, size, code in units.tolist():
                epoch = code - _BASE
                is_marker = 0 < size != BLANK_SIZE and 0 < epoch <= _MOST
                if is_marker and (not epochs or (epoch > epochs[-1][0] and start > epochs[-1][1])):
                    epochs.append((epoch, start))
        return tuple(epochs)

    async def begin(self, epoch: int) -> int:
        """Append the marker of an epoch, flush it, and return the log offset after it.

        No message may have been put into the store's current batch.

        :raises ValueError: the log has this or a later epoch.
        :raises StoreError: the marker cannot be written or flushed.
        """
        if epoch <= self.last_epoch:
            raise ValueError(f"epoch {epoch} cannot follow epoch {self.last_epoch}")
        tag = epoch_tag(epoch)
        batch = self._store.batch
        now_ms = self._store.clock.now_ms()
        properties = join_properties({TAGS: tag}).encode()
        marker = NewRecord(str(epoch).encode(), properties, 0, 0, now_ms, _HOST, _HOST, tags_code=tags_code(tag))
        batch.put(self._queue, marker)
        end = batch.commit()
        await self._store.wait_flushed(end)
        return end

    def adopt(self, masters: History) -> None:
        """Add the epochs whose markers the master's log no longer has, before an empty log begins at the master's.

        Otherwise a copy of the log would not know the epoch of its first bytes. The epochs are flushed.

        :param masters: the master's complete list of epochs.
        :raises StoreError: they cannot be written.
        """
        store, queue = self._store, self._queue
        assert store.replicated.is_empty
        old = [(epoch, start) for epoch, start in masters.epochs if start < masters.begin]
        if not old or queue.committed:
            return
        units = b"".join(UNIT.pack(start, 1, _BASE + epoch) for epoch, start in old)
        try:
            queue.write_units(store.disk, 0, units)
            queue.open_at(queue.files, len(old))
            queue.sync(store.disk, queue.unsynced)
        except OSError as error:
            raise store_error(error, f"the queue files of {EPOCHS_TOPIC}") from error
