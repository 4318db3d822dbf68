"""A sink's routes, the choice of a queue for each row, and the chunks of rows that are sent in one request.

The choice depends only on the row, its number in the partition and the topic's queues, so that a repeated task sends
the same rows to the same queues in the same order:

* a row with ``queueId`` goes to that queue;
* a row with ``shardingKey`` goes to the queue that Java's ``SelectMessageQueueByHash`` chooses for that string;
* all other rows go to one queue after another, in blocks of ``BLOCK_ROWS``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.blocking.cluster import ANSWER_SECONDS, BlockingCluster, ClusterOptions
from cometmq.client.errors import ClientError
from cometmq.client.route import route_of
from cometmq.errors import CometMQError
from cometmq.message.names import MASTER_ID
from cometmq.spark.errors import SinkError, SparkSourceError, UnreachableError
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.encoding import EncodedRows, refuse_first, refuse_row
from cometmq.spark.sink.options import SinkOptions
from cometmq.store.index.key_hashes import key_hashes

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class WriteRoute:
    """One topic's route for writing."""

    queues: tuple[Queue, ...]
    """Write queues, sorted by broker and number. RocketMQ's selectors number the queues in this order."""
    masters: dict[str, str]
    """Address of each broker's master."""


class _Cluster(BlockingCluster):
    unreachable: ClassVar[type[CometMQError]] = UnreachableError
    refused: ClassVar[type[CometMQError]] = SparkSourceError
    namesrv_step = "check option namesrvAddr, and that the nameserver is running"


def look_up_route(options: SinkOptions, topic: str) -> WriteRoute:
    """Query a nameserver for a topic's route.

    :raises UnreachableError: no nameserver answers.
    :raises SinkError: the topic does not exist, or is not writable.
    """
    timeout_s = min(ANSWER_SECONDS, options.send_timeout_s)
    data = _Cluster(ClusterOptions(options.namesrv_addr, options.access.security, timeout_s)).route(topic)
    if data is None:
        raise SinkError(
            f"topic {topic} does not exist", next_step=f"check its spelling, or create it: cometmq topic create {topic}"
        )
    try:
        write_queues = route_of(topic, data).write_queues
    except ClientError as error:
        raise SinkError(error.message, next_step=error.next_step) from error
    if not write_queues:
        raise SinkError(
            f"topic {topic} has no writable queue",
            next_step="its permission must include W, and a master must be registered",
        )
    return WriteRoute(
        tuple(Queue(of.topic, of.broker_name, of.queue_id) for of in write_queues),
        {of.broker_name: of.broker_addrs[MASTER_ID] for of in data.broker_datas if MASTER_ID in of.broker_addrs},
    )


class Routes:
    """The routes of the topics to which a task has sent rows. Each route is looked up only once."""

    def __init__(
        self,
        options: SinkOptions,
        known: dict[str, WriteRoute],
        choose_queues: Callable[[str, WriteRoute], WriteRoute] = lambda _, route: route,
    ) -> None:
        """Store the routes that the driver already knows. ``choose_queues`` returns the queues to use for each
        topic.
        """
        self._options = options
        self._planned = known
        self._choose_queues = choose_queues
        self._known: dict[str, WriteRoute] = {}

    def of(self, topic: str) -> WriteRoute:
        """Return the route of a topic.

        :raises SinkError: see :func:`look_up_route`.
        """
        route = self._known.get(topic)
        if route is None:
            found = self._planned.get(topic) or look_up_route(self._options, topic)
            route = self._known[topic] = self._choose_queues(topic, found)
        return route

    def address_of(self, queue: Queue, again: bool = False) -> str:
        """Return the address of a queue's master. If ``again`` is true, query the nameserver again.

        :raises UnreachableError: the broker is not registered at the moment, or no nameserver answers.
        """
        masters = look_up_route(self._options, queue.topic).masters if again else self.of(queue.topic).masters
        if queue.broker not in masters:
            raise UnreachableError(f"broker {queue.broker} of {queue} is not registered with the nameserver")
        return masters[queue.broker]


BLOCK_ROWS: Final = 512
"""Number of rows without a key that are sent to one queue together. With typical messages, they have half a megabyte,
for which a broker needs 3 ms.
"""
RUN_BYTES: Final = 256 * 1024
"""Minimum number of bytes in adjacent rows for one queue that are sent without regrouping."""
MAX_CHUNK_ROWS: Final = 4096
"""Maximum number of messages in a request, so that small messages do not block a broker's loop for long. Brokers accept
10,000 messages.
"""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One queue's messages for one request."""

    queue: Queue
    data: memoryview
    """The encoded messages, concatenated."""
    offsets: npt.NDArray[np.int64]
    """Start of each message in ``data``, and the end of the last message."""
    rows: npt.NDArray[np.int64]
    """Row number of each message in the partition."""
    alone: bool
    """True if the chunk is a single message that is not allowed in a batch."""

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, first: int, end: int) -> Chunk:
        """Return the messages ``first <= index < end`` of this chunk."""
        return Chunk(self.queue, self.data, self.offsets[first : end + 1], self.rows[first:end], self.alone)

    @property
    def pieces(self) -> memoryview:
        """Return the bytes of the chunk's messages."""
        return self.data[self.offsets[0] : self.offsets[-1]]


class Placing:
    """Assigns the rows of one partition to queues."""

    def __init__(self, options: SinkOptions, routes: Routes, partition: int) -> None:
        self._options = options
        self._routes = routes
        self._partition = partition
        self._queues: list[Queue] = []
        self._first_of: dict[str, int] = {}

    def chunks(self, encoded: EncodedRows) -> Iterator[Chunk]:
        """Split encoded rows into chunks. One queue's chunks are in the order of their rows.

        :raises SinkError: a row has no topic, a topic that does not exist, or a queue that the topic does not have.
        """
        count = encoded.batch.num_rows
        if not count:
            return
        targets = self._targets(encoded)
        rows = np.arange(encoded.where.first_row, encoded.where.first_row + count)
        pieces, alone = encoded.pieces, encoded.alone
        if self._is_mixed(targets, encoded):
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

    def _is_mixed(self, targets: npt.NDArray[np.int64], encoded: EncodedRows) -> bool:
        """Return True if rows should be regrouped by queue because adjacent rows for one queue have few bytes.

        If rows are large, copying takes longer than the additional requests.
        """
        if not np.any(targets[1:] < targets[:-1]):
            return False
        runs = int(np.count_nonzero(targets[1:] != targets[:-1])) + 1
        size_bytes: int = encoded.pieces.nbytes
        return size_bytes < runs * min(RUN_BYTES, self._options.max_batch_bytes // 2)

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
            refuse_first(batch, pc.is_null(column), encoded.where, "topic is null", "fill it, or set option topic")
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
                    batch,
                    number,
                    encoded.where,
                    "queueId is set without brokerName",
                    f"the topic is on {', '.join(names)}",
                )
            chosen = (broker or names[0], queue_id)
            if chosen not in index:
                counts = ", ".join(f"{name}: {sum(b == name for b, _ in index)}" for name in names)
                fault = f"its topic has no writable queue {queue_id} on broker {broker or names[0]}"
                refuse_row(batch, number, encoded.where, fault, f"numbers of queues: {counts}")
            targets[place] = index[chosen]


def _chosen(column: Any, chosen: npt.NDArray[np.intp] | None) -> Any:
    return column if chosen is None else column.take(pa.array(chosen))


def _by_key(keys: Any, queues: int) -> npt.NDArray[np.int64]:
    """Return the queue for each key. Each distinct key is hashed only once."""
    named = keys.dictionary_encode()
    of_key = key_hashes(named.dictionary.to_pylist()).astype(np.int64) % queues
    chosen: npt.NDArray[np.int64] = of_key[np.asarray(named.indices)]
    return chosen
