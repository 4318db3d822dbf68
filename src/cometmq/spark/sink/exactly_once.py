"""Exactly-once delivery, with brokers that support producer sequences (CometMQ): the sink numbers each queue's rows.

Theory of operation. A task's *producer* is its query and partition. A *lane* is the sequence of rows that the task
sends to one queue in one batch. Every attempt of the task has the same rows in the same order, so row ``n`` of a lane
is the same message in every attempt.

1. Before its first message to a broker, a task opens its producer there (OPEN_PRODUCER). The answer contains an epoch
   that is higher than in every earlier attempt, and the state of each lane: the number of stored rows, their CRC, and a
   note of the queues over which the rows were distributed. Afterwards, the broker rejects requests with lower epochs
   (PRODUCER_FENCED).
2. Rows are distributed over the queues in the note, or over the topic's current queues if no attempt has stored any
   rows.
3. A lane's stored rows are skipped, and their CRC is compared: if the rows differ, the task fails.
4. Each request contains its sequence: producer, batch, epoch, number of its first row, number of rows, CRC. The broker
   stores a request that begins at its next row, acknowledges a request that it has already stored, and rejects a
   request that would leave a gap.
5. At the end, no lane may contain more rows than this attempt had.

Faults. A request whose result is unknown is resent unchanged. A failed task is repeated by Spark with a higher epoch;
an executor that Spark has given up but that is still running is fenced. A broker that lost acknowledged rows answers
SEQUENCE_GAP: the task fails, and its next attempt receives the number of remaining rows and resends the other rows. The
CRC detects rows in a different order (caused by ``rand()`` or a different number of cores), so they cause an error and
never a silent loss. ``docs/exactly-once.md`` describes the broker's side.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from cometmq.checksum import crc32
from cometmq.client.blocking.cluster import ANSWER_SECONDS, Patience
from cometmq.client.blocking.connections import borrowed
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.producer_sequence import ProducerLane, ProducerLanes, ProducerSequence
from cometmq.message.properties import PRODUCER_SEQUENCE, encode_properties
from cometmq.remoting.blocking import BlockingConnectionError
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import denial_step
from cometmq.remoting.headers import OpenProducerRequestHeader, OpenProducerResponseHeader
from cometmq.spark.errors import SinkError
from cometmq.spark.records.queues import Queue
from cometmq.spark.sink.delivery import RowSelection
from cometmq.spark.sink.encoding import TaskIdentity
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk, WriteRoute

_PAUSE_SECONDS: Final = 0.1
_ORDER_ADVICE: Final = (
    "a repeated task must have the same rows in the same order and the same number of tasks: sort within partitions, "
    "leave out rand() and current_timestamp(), keep the number of cores"
)


@dataclass(slots=True)
class _Lane:
    """The rows that this task has sent to one queue."""

    stored: ProducerLane
    """State of the lane on the broker when the task began."""
    rows: int = 0
    crc: int = 0


class ExactlyOnce(RowSelection):
    """The row selection that numbers one task's rows."""

    def __init__(self, options: SinkOptions, identity: TaskIdentity) -> None:
        self._options = options
        self._batch = identity.batch
        self._producer = f"{identity.producer}.{identity.partition}"
        self._answer_s = min(ANSWER_SECONDS, options.send_timeout_s)
        self._epochs: dict[str, int] = {}
        self._known: dict[Queue, ProducerLane] = {}
        self._lanes: dict[Queue, _Lane] = {}
        self._notes: dict[str, str] = {}
        self._properties: dict[Queue, str] = {}

    def choose_queues(self, topic: str, route: WriteRoute) -> WriteRoute:
        """Return the queues over which an earlier attempt distributed the rows, or the current queues if there are
        none.

        :raises SinkError: a broker does not support sequences, does not answer, or knows a later run of this task.
        """
        for broker in sorted({queue.broker for queue in route.queues}):
            if broker not in self._epochs:
                self._open(broker, route.masters[broker])
        notes = {lane.note for queue, lane in self._known.items() if queue.topic == topic and lane.note}
        if len(notes) > 1:
            raise SinkError(
                f"tasks of {self._producer} distributed the rows of topic {topic} over different queues: "
                f"{sorted(notes)}",
                next_step="do not change the queues of a topic while a failed micro-batch waits to be repeated",
            )
        note = notes.pop() if notes else _note_of(route)
        self._notes[topic] = note
        queues = tuple(_queues_of(topic, note))
        gone = {queue.broker for queue in queues} - self._epochs.keys()
        if gone:
            raise SinkError(
                f"an earlier attempt sent rows of topic {topic} to broker {', '.join(sorted(gone))}, "
                "which is not registered now",
                next_step="start it again with its store, then restart the query",
            )
        return WriteRoute(queues, route.masters)

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """Return the rows that the broker has not stored, after checking the rows that it has stored.

        :raises SinkError: the broker has stored different rows in their place.
        """
        queue = chunk.queue
        lane = self._lanes.get(queue)
        if lane is None:
            lane = self._lanes[queue] = _Lane(self._known.get(queue, ProducerLane(0)))
        before = max(min(lane.stored.next - lane.rows, len(chunk)), 0)
        if before:
            head = chunk.part(0, before)
            lane.rows += before
            lane.crc = crc32(head.pieces, lane.crc)
            if lane.rows == lane.stored.next and lane.stored.crc not in (None, lane.crc):
                raise SinkError(
                    f"the first {lane.rows} rows for {queue} differ from those that an earlier attempt stored",
                    next_step=_ORDER_ADVICE,
                )
        if before == len(chunk):
            return None
        rest = chunk.part(before, len(chunk)) if before else chunk
        crc = crc32(rest.pieces, lane.crc)
        epoch = self._epochs[queue.broker]
        note = self._notes[queue.topic]
        sequence = ProducerSequence(self._producer, self._batch, epoch, lane.rows, len(rest), crc, note)
        self._properties[queue] = encode_properties({PRODUCER_SEQUENCE: sequence.text()})
        lane.rows += len(rest)
        lane.crc = crc
        return rest

    def properties(self, chunk: Chunk) -> str:
        """Return the sequence that the request must contain."""
        return self._properties[chunk.queue]

    def finish(self) -> None:
        """Check that no earlier attempt had more rows.

        :raises SinkError: an earlier attempt had more rows.
        """
        for queue, stored in self._known.items():
            lane = self._lanes.get(queue)
            rows = 0 if lane is None else lane.rows
            if stored.next > rows:
                raise SinkError(
                    f"an earlier attempt stored {stored.next} rows in {queue}, but this one has {rows}",
                    next_step=_ORDER_ADVICE,
                )

    def _open(self, broker: str, address: str) -> None:
        answer = self._ask(broker, address)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise SinkError(
                f"broker {broker} ({address}) does not support producer sequences, which exactly-once requires",
                next_step="use CometMQ brokers, or deliveryGuarantee effectively-once",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise SinkError(
                f"broker {broker} does not open producer {self._producer}: code {answer.code}: {answer.remark}",
                next_step="a later run has taken over, or the checkpoint is older than the broker's state: "
                "stop the other run, or use a new checkpoint and a new producerId"
                if answer.code == ResponseCode.PRODUCER_FENCED
                else denial_step(answer.code, answer.remark),
            )
        self._epochs[broker] = answer.header(OpenProducerResponseHeader).epoch
        for name, lane in decode_body(ProducerLanes, answer.body).lanes.items():
            topic, _, queue_id = name.rpartition("/")
            self._known[Queue(topic, broker, int(queue_id))] = lane

    def _ask(self, broker: str, address: str) -> RemotingCommand:
        """Open the producer. Retry until the time limit while the broker is busy or absent."""
        header = OpenProducerRequestHeader(producer=self._producer, batch=self._batch)
        patience = Patience(SYSTEM_CLOCK, self._options.send_timeout_s, _PAUSE_SECONDS)
        while True:
            try:
                with borrowed(address, self._options.access.security(), self._answer_s) as connection:
                    answer = connection.invoke(RequestCode.OPEN_PRODUCER, header)
                if answer.code != ResponseCode.SYSTEM_BUSY:
                    return answer
                reason = answer.remark
            except BlockingConnectionError as error:
                reason = error.message
            if not patience.again():
                raise SinkError(
                    f"broker {broker} ({address}) did not open a producer: {reason}",
                    next_step="check that it is running, or raise option sendTimeoutMs",
                )


def _note_of(route: WriteRoute) -> str:
    """Return a route's queues as the text ``broker:count,broker:count``."""
    return ",".join(
        f"{broker}:{sum(1 for _ in queues)}"
        for broker, queues in itertools.groupby(route.queues, lambda queue: queue.broker)
    )


def _queues_of(topic: str, note: str) -> list[Queue]:
    found: list[Queue] = []
    for part in note.split(","):
        broker, _, numbers = part.rpartition(":")
        found += [Queue(topic, broker, number) for number in range(int(numbers))]
    return found
