"""Which queue a row goes to, and how the rows of each queue are cut into chunks that are sent at once.

The choice depends on nothing but the row, its number in the partition and the topic's queues, so that a repeated
task sends the same rows to the same queues in the same order:

* a row with ``queueId`` goes there;
* a row with ``shardingKey`` goes where Java's ``SelectMessageQueueByHash`` sends that string;
* all others go in blocks of ``BLOCK_ROWS`` to one queue after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.message.ids import key_hashes
from cometmq.spark.errors import SinkError
from cometmq.spark.queues import Queue
from cometmq.spark.sink.encoding import EncodedRows
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.routes import Routes, WriteRoute
from cometmq.spark.sink.rows import refuse_first, refuse_row

if TYPE_CHECKING:
    import numpy.typing as npt

BLOCK_ROWS: Final = 512
"""Rows without a key that stay together: half a megabyte of common messages, 3 ms of a broker."""
MAX_CHUNK_ROWS: Final = 4096
"""Messages of one request, so that small ones do not hold a broker's loop for long (brokers take 10,000)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Messages of one queue that are sent by one request."""

    queue: Queue
    data: memoryview
    """Their pieces, one behind the other."""
    offsets: npt.NDArray[np.int64]
    """Where each piece begins in ``data``, and the end of the last."""
    rows: npt.NDArray[np.int64]
    """The number of each row in the partition."""
    alone: bool
    """Whether its one message must go by a request of its own kind."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, first: int, end: int) -> Chunk:
        """The messages ``first <= index < end`` of this chunk."""
        return Chunk(self.queue, self.data, self.offsets[first : end + 1], self.rows[first:end], self.alone)

    @property
    def pieces(self) -> memoryview:
        """The bytes of its messages."""
        return self.data[self.offsets[0] : self.offsets[-1]]


class Placing:
    """Places the rows of one partition."""

    def __init__(self, options: SinkOptions, routes: Routes, partition: int) -> None:
        self._options = options
        self._routes = routes
        self._partition = partition
        self._queues: list[Queue] = []
        self._first_of: dict[str, int] = {}

    def chunks(self, encoded: EncodedRows) -> Iterator[Chunk]:
        """Cut encoded rows into chunks; those of one queue come in the order of their rows.

        :raises SinkError: a row has no topic, a topic that does not exist, or a queue that the topic has not.
        """
        count = encoded.batch.num_rows
        if not count:
            return
        targets = self._targets(encoded)
        rows = np.arange(encoded.where.first_row, encoded.where.first_row + count)
        pieces, alone = encoded.pieces, encoded.alone
        if np.any(targets[1:] < targets[:-1]):
            order = np.argsort(targets, kind="stable")
            pieces, alone, rows, targets = pieces.take(pa.array(order)), alone[order], rows[order], targets[order]
        offsets = np.frombuffer(pieces.buffers()[1], np.int32)[pieces.offset :][: count + 1].astype(np.int64)
        data = memoryview(pieces.buffers()[2])
        breaks = np.flatnonzero((targets[1:] != targets[:-1]) | alone[1:] | alone[:-1]) + 1
        bounds = [0, *breaks.tolist(), count]
        for first, last in itertools.pairwise(bounds):
            while first < last:
                end = self._end_of_chunk(offsets, first, last)
                queue = self._queues[targets[first]]
                yield Chunk(queue, data, offsets[first : end + 1], rows[first:end], bool(alone[first]))
                first = end

    def _end_of_chunk(self, offsets: npt.NDArray[np.int64], first: int, last: int) -> int:
        most = offsets[first] + self._options.max_batch_bytes
        fitting = int(np.searchsorted(offsets, most, side="right")) - 1
        return min(max(fitting, first + 1), first + MAX_CHUNK_ROWS, last)

    # Targets: for each row the index of its queue in self._queues ------------------------------------

    def _targets(self, encoded: EncodedRows) -> npt.NDArray[np.int64]:
        batch = encoded.batch
        if "topic" not in batch.schema.names:
            assert self._options.topic is not None
            return self._targets_in(self._options.topic, encoded, None)
        column = batch.column("topic")
        if self._options.topic is not None:
            column = column.fill_null(self._options.topic)
        elif column.null_count:
            refuse_first(batch, pc.is_null(column), encoded.where, "topic is null", "fill it, or give option topic")
        named = column.dictionary_encode()
        codes = np.asarray(named.indices)
        targets = np.empty(batch.num_rows, np.int64)
        for code, topic in enumerate(named.dictionary.to_pylist()):
            chosen = np.flatnonzero(codes == code)
            try:
                self._routes.of(topic)
            except SinkError as error:
                refuse_row(batch, int(chosen[0]), encoded.where, error.message, error.next_step or "")
            targets[chosen] = self._targets_in(topic, encoded, chosen)
        return targets

    def _targets_in(
        self, topic: str, encoded: EncodedRows, chosen: npt.NDArray[np.intp] | None
    ) -> npt.NDArray[np.int64]:
        route = self._routes.of(topic)
        first = self._first_of.get(topic)
        if first is None:
            first = self._first_of[topic] = len(self._queues)
            self._queues += route.queues
        batch = encoded.batch
        numbers = np.arange(batch.num_rows) if chosen is None else chosen
        rows = numbers + encoded.where.first_row
        targets = (rows // BLOCK_ROWS + self._partition) % len(route.queues)
        if "shardingKey" in batch.schema.names:
            keys = _chosen(batch.column("shardingKey"), chosen)
            keyed = np.asarray(pc.is_valid(keys))
            if keyed.any():
                targets[keyed] = _by_key(keys.drop_null(), len(route.queues))
        if "queueId" in batch.schema.names:
            self._place_explicit(encoded, route, numbers, targets)
        return targets + first

    def _place_explicit(
        self, encoded: EncodedRows, route: WriteRoute, numbers: npt.NDArray[np.intp], targets: npt.NDArray[np.int64]
    ) -> None:
        batch = encoded.batch
        index = {(queue.broker, queue.queue_id): at for at, queue in enumerate(route.queues)}
        names = sorted({queue.broker for queue in route.queues})
        wanted = batch.column("queueId").to_pylist()
        brokers = batch.column("brokerName").to_pylist() if "brokerName" in batch.schema.names else [None] * len(wanted)
        for place, number in enumerate(numbers.tolist()):
            queue_id, broker = wanted[number], brokers[number]
            if queue_id is None:
                continue
            if broker is None and len(names) > 1:
                refuse_row(
                    batch, number, encoded.where, "queueId without brokerName", f"the topic is on {', '.join(names)}"
                )
            chosen = (broker or names[0], queue_id)
            if chosen not in index:
                told = ", ".join(f"{name}: {sum(b == name for b, _ in index)}" for name in names)
                fault = f"its topic has no queue {queue_id} on broker {broker or names[0]} to write to"
                refuse_row(batch, number, encoded.where, fault, f"numbers of queues: {told}")
            targets[place] = index[chosen]


def _chosen(column: Any, chosen: npt.NDArray[np.intp] | None) -> Any:
    return column if chosen is None else column.take(pa.array(chosen))


def _by_key(keys: Any, queues: int) -> npt.NDArray[np.int64]:
    """The queue of each key; each distinct key is hashed once."""
    named = keys.dictionary_encode()
    of_key = key_hashes(named.dictionary.to_pylist()).astype(np.int64) % queues
    chosen: npt.NDArray[np.int64] = of_key[np.asarray(named.indices)]
    return chosen
