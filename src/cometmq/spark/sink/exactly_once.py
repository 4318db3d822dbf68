"""Exactly once, with brokers that know sequences of producers (CometMQ): the sink numbers the rows of each queue.

Before its first message to a broker a task opens its producer there. The answer fences earlier attempts of the same
task, and says how many rows of each queue are stored already, with a checksum over them. These rows are passed over;
that they are the same ones as before is checked by the checksum, where they end.
"""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import Final

from cometmq.checksum import crc32
from cometmq.clock import SYSTEM_CLOCK, Clock
from cometmq.message.producer_sequence import ProducerLane, ProducerLanes, ProducerSequence
from cometmq.message.properties import PRODUCER_SEQUENCE
from cometmq.remoting.blocking import BlockingConnectionError
from cometmq.remoting.bodies import decode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.denials import denial_step
from cometmq.remoting.headers import OpenProducerRequestHeader, OpenProducerResponseHeader
from cometmq.spark.connections import borrowed
from cometmq.spark.errors import SinkError
from cometmq.spark.queues import Queue
from cometmq.spark.sink.identity import TaskIdentity
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.placing import Chunk
from cometmq.spark.sink.routes import ANSWER_SECONDS, WriteRoute

_PAUSE_SECONDS: Final = 0.1
_ORDER_ADVICE: Final = (
    "a repeated task must have the same rows in the same order and the same number of tasks: sort within partitions, "
    "leave out rand() and current_timestamp(), keep the number of cores"
)


@dataclass(slots=True)
class _Lane:
    """The rows of this task in one queue."""

    stored: ProducerLane
    """What the broker had when the task began."""
    rows: int = 0
    crc: int = 0


class ExactlyOnce:
    """Numbers the rows of one task."""

    def __init__(self, options: SinkOptions, identity: TaskIdentity, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._batch = identity.batch
        self._producer = f"{identity.producer}.{identity.partition}"
        self._clock = clock
        self._answer_s = min(ANSWER_SECONDS, options.send_timeout_s)
        self._epochs: dict[str, int] = {}
        self._known: dict[Queue, ProducerLane] = {}
        self._lanes: dict[Queue, _Lane] = {}
        self._notes: dict[str, str] = {}
        self._properties: dict[Queue, str] = {}

    def settle(self, topic: str, route: WriteRoute) -> WriteRoute:
        """The queues among which the rows of a repeated task were dealt the first time, else those there are now.

        :raises SinkError: a broker knows no sequences, does not answer, or has a later run of this task.
        """
        for broker in sorted({queue.broker for queue in route.queues}):
            if broker not in self._epochs:
                self._open(broker, route.masters[broker])
        notes = {lane.note for queue, lane in self._known.items() if queue.topic == topic and lane.note}
        if len(notes) > 1:
            raise SinkError(
                f"tasks of {self._producer} dealt the rows of topic {topic} to different queues: {sorted(notes)}",
                next_step="do not change the queues of a topic while a failed micro-batch waits to be repeated",
            )
        note = notes.pop() if notes else _note_of(route)
        self._notes[topic] = note
        queues = tuple(_queues_of(topic, note))
        gone = {queue.broker for queue in queues} - self._epochs.keys()
        if gone:
            raise SinkError(
                f"an earlier attempt dealt rows of topic {topic} to broker {', '.join(sorted(gone))}, "
                "which is not registered now",
                next_step="bring it back with its store, then start the query again",
            )
        return WriteRoute(queues, route.masters)

    def unsent(self, chunk: Chunk) -> Chunk | None:
        """The rows that the broker has not, after a check of those that it has.

        :raises SinkError: the broker has other rows in the place of these.
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
        self._properties[queue] = f"{PRODUCER_SEQUENCE}\x01{sequence.text()}\x02"
        lane.rows += len(rest)
        lane.crc = crc
        return rest

    def properties(self, chunk: Chunk) -> str:
        """Its sequence."""
        return self._properties[chunk.queue]

    def still_unsent(self, chunk: Chunk) -> Chunk | None:
        """All of it: the broker recognises what it has."""
        return chunk

    def finish(self) -> None:
        """Check that no earlier attempt had more rows.

        :raises SinkError: one had.
        """
        for queue, stored in self._known.items():
            lane = self._lanes.get(queue)
            rows = 0 if lane is None else lane.rows
            if stored.next > rows:
                raise SinkError(
                    f"an earlier attempt stored {stored.next} rows in {queue}, this one has {rows}",
                    next_step=_ORDER_ADVICE,
                )

    def _open(self, broker: str, address: str) -> None:
        answer = self._ask(broker, address)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise SinkError(
                f"broker {broker} ({address}) knows no sequences of producers, which exactly-once needs",
                next_step="use CometMQ brokers, or deliveryGuarantee effectively-once",
            )
        if answer.code != ResponseCode.SUCCESS:
            raise SinkError(
                f"broker {broker} does not open producer {self._producer}: code {answer.code}: {answer.remark}",
                next_step="a later run has taken over, or the checkpoint is older than what the broker has seen: "
                "stop the other run, or use a new checkpoint and a new producerId"
                if answer.code == ResponseCode.PRODUCER_FENCED
                else denial_step(answer.code, answer.remark),
            )
        self._epochs[broker] = answer.header(OpenProducerResponseHeader).epoch
        for name, lane in decode_body(ProducerLanes, answer.body).lanes.items():
            topic, _, queue_id = name.rpartition("/")
            self._known[Queue(topic, broker, int(queue_id))] = lane

    def _ask(self, broker: str, address: str) -> RemotingCommand:
        """Open the producer; a broker that is busy or away is asked again until the patience is over."""
        header = OpenProducerRequestHeader(producer=self._producer, batch=self._batch)
        give_up_at = self._clock.monotonic() + self._options.send_timeout_s
        for attempt in itertools.count():
            try:
                with borrowed(address, self._options.access, self._answer_s) as connection:
                    answer = connection.invoke(RequestCode.OPEN_PRODUCER, header)
                if answer.code != ResponseCode.SYSTEM_BUSY:
                    return answer
                reason = answer.remark
            except BlockingConnectionError as error:
                reason = error.message
            if attempt and self._clock.monotonic() > give_up_at:
                raise SinkError(
                    f"broker {broker} ({address}) does not open a producer: {reason}",
                    next_step="is it running? option sendTimeoutMs waits longer",
                )
            threading.Event().wait(_PAUSE_SECONDS)
        raise AssertionError("count() never ends")


def _note_of(route: WriteRoute) -> str:
    """The queues of a route as text, ``broker:numbers,broker:numbers``."""
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
