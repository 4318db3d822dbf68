"""Batches that Python has checked, in the compiled core, which makes all records of one in a single call (hot path).

The core takes most batches from the bytes of a connection (:mod:`cometmq.broker.turn.plain_sends`). The others come to
Python: large frames, batches that are compressed or whose producer numbers its messages, and batches under quotas or
with samples for the audit log. Python checks the topic, queue, size and common properties. The core builds the same
records and derived data as Python, byte for byte. It leaves a batch to Python if one of its messages is not plain (see
:mod:`cometmq.broker.turn.plain_sends`), if the bytes are damaged, or if the records do not fit into the current log
file.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from cometmq.broker.context import BrokerContext
from cometmq.broker.send.sequenced_sends import SequencedSends
from cometmq.broker.statistics.traffic import SMALL_BYTES
from cometmq.broker.turn.targets import SendHeader, SendTarget
from cometmq.limits import MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES
from cometmq.message.layout import HOSTS_V6, host_flags
from cometmq.message.producer_sequence import ProducerSequence
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.queue.consume_queue import UNIT_DTYPE
from cometmq.store.write_batch import EncodedRecords


class _LeftToPythonError(Exception):
    """Raised when the core cannot handle a batch."""


class PlainBatches:
    """Adds complete batches to the turn.

    :param core: the module ``cometmq_core``.
    """

    def __init__(self, core: Any, broker: BrokerContext, sequenced: SequencedSends) -> None:
        self._encode: Final = core.batch_records
        self._turn = broker.turn
        self._sequenced = sequenced
        self._host = broker.answers.store_host
        self._counts = broker.stats.traffic is not None
        self._is_indexed = broker.config.message_index_enable
        self._most = (MAX_BATCH_MESSAGES, MAX_PROPERTIES_BYTES, broker.turn.max_stored_bytes)

    def add_batch(
        self,
        target: SendTarget,
        queue: ConsumeQueue,
        header: SendHeader,
        body: bytes,
        tail: str,
        born_host: bytes,
        sequence: ProducerSequence | None,
    ) -> bytes | None:
        """Add a batch's messages to the turn; return their encoded log offsets, or ``None`` if the core left the batch
        to Python.

        :param tail: appended to the properties of each message.
        :param sequence: the sequence of the batch; if the broker already has some of the messages, the batch is left to
        Python.
        :raises RefusedError: see ``ProducerSequences.stored_of``.
        """
        if queue.delay_ms or not queue.record_middle:
            return None
        try:
            with self._turn.all_or_none():
                return self._add_messages(target, queue, header, body, tail, born_host, sequence)
        except _LeftToPythonError:
            return None

    def _add_messages(
        self,
        target: SendTarget,
        queue: ConsumeQueue,
        header: SendHeader,
        body: bytes,
        tail: str,
        born_host: bytes,
        sequence: ProducerSequence | None,
    ) -> bytes:
        place = self._turn.next_place()
        if place is None:
            raise _LeftToPythonError
        made = self._encode(
            body,
            (tail.encode(), (tail if sequence is None else tail + self._sequenced.mark(sequence)).encode()),
            (*place, queue.next_offset),
            (queue.queue_id, queue.record_middle, queue.index_prefix if self._is_indexed else None),
            (
                self._sys_flag(target, header, born_host),
                header.born_timestamp,
                born_host,
                self._host,
                header.reconsume_times or 0,
            ),
            self._most,
        )
        if made is None:
            raise _LeftToPythonError
        records, messages, last_size, content_bytes, units, offsets, hashes, hashed_at = made
        if sequence is not None and not self._sequenced.is_next(sequence, queue, messages):
            raise _LeftToPythonError
        first = place[0], queue.next_offset
        encoded = EncodedRecords(
            records, place[0] + len(records), last_size, messages, ((queue, messages, units),), hashes, hashed_at
        )
        size_bytes = content_bytes + messages * target.fixed_bytes
        large = _large_sizes(units) if self._counts else []
        self._turn.put_encoded(encoded, ((target, messages, size_bytes, (large, []) if large else None),))
        if sequence is not None:
            self._sequenced.put(sequence, queue, first)
        found: bytes = offsets
        return found

    def _sys_flag(self, target: SendTarget, header: SendHeader, born_host: bytes) -> int:
        return (header.sys_flag | target.sys_flag) & ~HOSTS_V6 | host_flags(born_host, self._host)


def _large_sizes(units: bytes) -> list[int]:
    sizes = np.frombuffer(units, UNIT_DTYPE)["size"]
    found: list[int] = sizes[sizes > SMALL_BYTES].tolist()
    return found
