"""Batch sends whose producer numbers its messages: each is stored once, however often it is sent.

An extension of CometMQ's, by the property ``PRODUCER_SEQUENCE`` of a SEND_BATCH_MESSAGE (320) and the request
OPEN_PRODUCER (20001), which other brokers answer with REQUEST_CODE_NOT_SUPPORTED; ``docs/exactly-once.md`` has the
protocol. Sends without the property pay one look at the properties of a batch.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any, Final

from cometmq.broker.answers import SendAnswers
from cometmq.broker.inner_message import Stored
from cometmq.broker.one_answer import OneAnswer
from cometmq.broker.producer_sequence_log import ProducerSequenceLog, lane_name, run_record
from cometmq.broker.producer_sequences import UNKNOWN_CRC, Lane
from cometmq.broker.send_properties import SendProperties
from cometmq.broker.send_targets import SendHeader, SendRefusedError
from cometmq.broker.store_turn import StoreTurn
from cometmq.clock import Clock
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.batch import BatchPiece
from cometmq.message.producer_sequence import (
    ProducerLane,
    ProducerLanes,
    ProducerSequence,
    SequenceError,
    is_producer_id,
    parse_sequence,
)
from cometmq.message.properties import PRODUCER_SEQUENCE, PROPERTY_SEPARATOR, decode_properties, encode_properties
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import OpenProducerRequestHeader, OpenProducerResponseHeader, SendMessageResponseHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore, TopicQueue

Pieces = list[tuple[BatchPiece, SendProperties]]
_SEPARATOR: Final = PROPERTY_SEPARATOR.encode()
_LATE: Final = Response(ResponseCode.SYSTEM_BUSY, remark="the disk has not taken the log in time, try again")


class SequencedSends:
    """Judges and notes the sequences of batch sends."""

    def __init__(
        self,
        sequences: ProducerSequenceLog,
        turn: StoreTurn,
        store: MessageStore,
        answers: SendAnswers,
        store_host: bytes,
        *,
        clock: Clock,
    ) -> None:
        self._sequences = sequences
        self._turn = turn
        self._store = store
        self._answers = answers
        self._store_host = store_host
        self._clock = clock

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code of this module."""
        processors.register(RequestCode.OPEN_PRODUCER, OpenProducerRequestHeader, self.open)

    def open(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Begin or go on with a batch of a producer: its epoch, and how far each queue has its messages.

        Answered once the log has it, so that the runs before stay fenced after a crash, and after a failover; where
        that takes longer than ``syncFlushTimeout``, SYSTEM_BUSY, and the producer asks again.
        """
        header: OpenProducerRequestHeader = request.header
        if not is_producer_id(header.producer) or header.batch < 0:
            return Response(
                ResponseCode.INVALID_PARAMETER,
                remark=f"{header.producer!r} is no name of a producer, or batch {header.batch} is negative",
            )
        try:
            state = self._sequences.table().open(header.producer, header.batch)
        except SendRefusedError as refused:
            return Response(refused.code, remark=refused.remark)
        lanes = {
            name: ProducerLane(lane.next, None if lane.crc == UNKNOWN_CRC else lane.crc, lane.note)
            for name, lane in state.lanes.items()
        }
        answer = Response(header=OpenProducerResponseHeader(epoch=state.epoch), body=encode_body(ProducerLanes(lanes)))
        once = OneAnswer(connection, request)

        def stored(outcome: Stored | SendRefusedError) -> None:
            once.give(answer if isinstance(outcome, Stored) else Response(outcome.code, remark=outcome.remark))

        try:
            record = run_record(header.producer, state, self._store_host, self._clock.now_ms())
            self._turn.put_inner(record, stored, late=partial(once.give, _LATE))
        except SendRefusedError as refused:
            stored(refused)
        return None

    def take(self, header: SendHeader) -> ProducerSequence | None:
        """The sequence of a batch, taken out of its properties; ``None`` when it has none.

        :raises SendRefusedError: it is not one.
        """
        text = header.properties
        if not text or PRODUCER_SEQUENCE not in text:
            return None
        properties = decode_properties(text)
        value = properties.pop(PRODUCER_SEQUENCE, None)
        if value is None:
            return None
        header.properties = encode_properties(properties)
        try:
            return parse_sequence(value)
        except SequenceError as error:
            raise _illegal(f"property {PRODUCER_SEQUENCE}: {error}") from error

    def stored_before(self, sequence: ProducerSequence, queue: TopicQueue, pieces: Pieces) -> Response | None:
        """Leave only those of ``pieces`` that are not stored yet; when all are, their original answer.

        :raises SendRefusedError: as ``ProducerSequences.stored_of``, or the sequence is not that of the batch.
        """
        if sequence.count != len(pieces):
            raise _illegal(f"its sequence has {sequence.count} messages, the batch {len(pieces)}")
        lane = lane_name(queue.topic, queue.queue_id)
        table = self._sequences.table()
        stored = table.stored_of(sequence, lane)
        if stored == len(pieces):
            return self._original(sequence, queue, table.lane(sequence.producer, lane))
        del pieces[:stored]
        left = ProducerSequence(
            sequence.producer,
            sequence.batch,
            sequence.epoch,
            sequence.first + stored,
            sequence.count - stored,
            sequence.crc,
            sequence.note,
        )
        head = pieces[0][1]
        head.stored += _SEPARATOR + f"{PRODUCER_SEQUENCE}\x01{left.text()}".encode()
        if len(head.stored) > MAX_PROPERTIES_BYTES:
            raise _illegal("its properties and the sequence have more than 32 KB")
        return None

    def put(self, sequence: ProducerSequence, queue: TopicQueue, first: tuple[int, int]) -> None:
        """The messages were put; ``first`` has the log offset and queue offset of the first of them."""
        stored = Stored(*first)
        lane = lane_name(queue.topic, queue.queue_id)
        self._turn.tell(self._sequences.table().put(sequence, lane, stored), stored)

    def _original(self, sequence: ProducerSequence, queue: TopicQueue, lane: Lane) -> Response:
        """What was answered when the messages were stored; of messages stored long ago only that they are."""
        if lane.first != sequence.first:
            return Response(
                header=SendMessageResponseHeader(msg_id="", queue_id=queue.queue_id, queue_offset=-1),
                remark="stored before",
                ext=self._answers.ext,
            )
        records = self._store.records(lane.physical_offset, self._store.max_physical_offset)
        offsets = tuple(offset for offset, _ in itertools.islice(records, sequence.count))
        return self._answers.original(queue.queue_id, lane.queue_offset, offsets)


def _illegal(why: str) -> SendRefusedError:
    return SendRefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {why}")
