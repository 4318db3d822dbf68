"""Batch sends with producer sequences: each message is stored once, even if it is sent several times.

This CometMQ extension uses the property ``PRODUCER_SEQUENCE`` of SEND_BATCH_MESSAGE (320) and the request OPEN_PRODUCER
(20001), which other brokers answer with REQUEST_CODE_NOT_SUPPORTED. ``docs/exactly-once.md`` describes the protocol.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Final

from cometmq.broker.context import BrokerContext
from cometmq.broker.send.producer_sequence_log import ProducerSequenceLog
from cometmq.broker.send.producer_sequences import UNKNOWN_CRC, Lane, ProducerState, lane_name, queue_of
from cometmq.broker.turn.answers import OneAnswer
from cometmq.broker.turn.inner_message import InnerMessage, Stored
from cometmq.broker.turn.targets import RefusedError, SendHeader
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import PRODUCER_RUNS_TOPIC
from cometmq.message.producer_sequence import (
    ProducerLane,
    ProducerLanes,
    ProducerSequence,
    SequenceError,
    is_producer_id,
    parse_sequence,
)
from cometmq.message.properties import (
    PRODUCER_SEQUENCE,
    PROPERTY_SEPARATOR,
    decode_properties,
    encode_properties,
    join_properties,
)
from cometmq.message.sysflag import TRANSACTION_PREPARED
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import OpenProducerRequestHeader, OpenProducerResponseHeader, SendMessageResponseHeader
from cometmq.remoting.permissions import ANY_ACCOUNT, CALLER, Action, on_topic
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.queue.consume_queue import BLANK_SIZE
from cometmq.store.write_batch import NewRecord

_LATE: Final = Response(ResponseCode.SYSTEM_BUSY, remark="the log was not flushed in time, try again")


class SequencedSends:
    """Checks and records the sequences of batch sends."""

    def __init__(self, broker: BrokerContext, sequences: ProducerSequenceLog) -> None:
        self._sequences = sequences
        self._turn = broker.turn
        self._store = broker.store
        self._answers = broker.answers
        self._store_host = broker.host
        self._clock = broker.clock

    @answers(RequestCode.OPEN_PRODUCER, permission=ANY_ACCOUNT)
    def open(
        self, connection: ServerConnection, request: Request[OpenProducerRequestHeader], _body: bytes
    ) -> Response | None:
        """Begin or continue a producer's batch; respond with its epoch and its last message in each queue.

        The response is sent once the run is in the log, so that earlier runs remain fenced after a crash or a failover.
        If this takes longer than ``syncFlushTimeout``, the response is SYSTEM_BUSY, and the producer retries.
        """
        header = request.header
        if not is_producer_id(header.producer) or header.batch < 0:
            return Response(
                ResponseCode.INVALID_PARAMETER,
                remark=f"invalid producer name {header.producer!r} or negative batch {header.batch}",
            )
        table = self._sequences.table()
        known = table.producers.get(header.producer)
        self._check_owner(known, header.producer)
        for lane in [] if known is None else [*known.lanes]:
            topic, queue_id = queue_of(lane)
            self._forget_other(header.producer, self._store.queue(topic, queue_id))
        state = table.open(header.producer, header.batch)
        lanes = {
            name: ProducerLane(lane.next, None if lane.crc == UNKNOWN_CRC else lane.crc, lane.note)
            for name, lane in state.lanes.items()
        }
        answer = Response(header=OpenProducerResponseHeader(epoch=state.epoch), body=encode_body(ProducerLanes(lanes)))
        once = OneAnswer(connection, request)

        def stored(outcome: Stored | RefusedError) -> None:
            once.respond(answer if isinstance(outcome, Stored) else outcome.response())

        try:
            record = run_record(header.producer, state, self._store_host, self._clock.now_ms())
            self._turn.put_inner(record, stored, late=partial(once.respond, _LATE))
        except RefusedError as refused:
            stored(refused)
        return None

    @staticmethod
    def _check_owner(state: ProducerState | None, producer: str) -> None:
        """Refuse an account that may not send to all topics of a producer, so that it cannot fence the producer.

        :raises RefusedError: the account may not send to all topics.
        """
        caller = CALLER.get()
        if state is None or caller is None or caller.is_super:
            return
        if not all(caller.may(on_topic(topic, Action.PUB)) for topic in {queue_of(lane)[0] for lane in state.lanes}):
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"the producer name {producer} is used by another account, choose another"
            )

    def _check_run(self, sequence: ProducerSequence) -> None:
        """Refuse all runs except the current one if the account may not send to all topics of the producer.

        :raises RefusedError: see :meth:`_check_owner`.
        """
        state = self._sequences.table().producers.get(sequence.producer)
        if state is not None and (sequence.batch, sequence.epoch) != (state.batch, state.epoch):
            self._check_owner(state, sequence.producer)

    def _forget_other(self, producer: str, queue: ConsumeQueue) -> None:
        """Forget a producer's messages in a queue if its topic was deleted and created again."""
        table = self._sequences.table()
        state = table.producers.get(producer)
        name = lane_name(queue.topic, queue.queue_id)
        lane = None if state is None else state.lanes.get(name)
        if lane is None:
            return
        unit = queue.unit(lane.queue_offset)
        if unit is None:
            is_gone = lane.queue_offset >= queue.committed
        else:
            is_gone = unit[0] != lane.physical_offset and 0 < unit[1] < BLANK_SIZE
        if is_gone:
            table.forget_lane(producer, name)

    def cut_sequence(self, header: SendHeader) -> ProducerSequence | None:
        """Remove the sequence from a batch's properties and return it; return ``None`` if there is none.

        :raises RefusedError: the sequence cannot be parsed.
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

    def stored_before(
        self, sequence: ProducerSequence, queue: ConsumeQueue, records: list[NewRecord]
    ) -> Response | None:
        """Remove from ``records`` the messages that are already stored; if that is all, return their first response.

        :raises RefusedError: see ``ProducerSequences.stored_of``, or the sequence does not match the batch.
        """
        if sequence.count != len(records):
            raise _illegal(f"its sequence has {sequence.count} messages, but the batch has {len(records)}")
        self._check_run(sequence)
        self._forget_other(sequence.producer, queue)
        lane = lane_name(queue.topic, queue.queue_id)
        table = self._sequences.table()
        stored = table.stored_of(sequence, lane)
        if stored == len(records):
            return self._original(sequence, queue, table.lane(sequence.producer, lane))
        del records[:stored]
        left = ProducerSequence(
            sequence.producer,
            sequence.batch,
            sequence.epoch,
            sequence.first + stored,
            sequence.count - stored,
            sequence.crc,
            sequence.note,
        )
        head = records[0]
        head.properties += self.mark(left).encode()
        if len(head.properties) > MAX_PROPERTIES_BYTES:
            raise _illegal("its properties, including the sequence, exceed 32 KB")
        return None

    @staticmethod
    def mark(sequence: ProducerSequence) -> str:
        """Return the properties text to append to a sequence's first message."""
        return PROPERTY_SEPARATOR + join_properties({PRODUCER_SEQUENCE: sequence.text()})

    def is_next(self, sequence: ProducerSequence, queue: ConsumeQueue, messages: int) -> bool:
        """Return whether a sequence has exactly ``messages`` messages and none of them has been stored.

        :raises RefusedError: see ``ProducerSequences.stored_of``.
        """
        if sequence.count != messages:
            return False
        self._check_run(sequence)
        self._forget_other(sequence.producer, queue)
        lane = lane_name(queue.topic, queue.queue_id)
        return not self._sequences.table().stored_of(sequence, lane)

    def put(self, sequence: ProducerSequence, queue: ConsumeQueue, first: tuple[int, int]) -> None:
        """Record messages that are being stored; ``first`` contains the offsets of the first of them."""
        stored = Stored(*first)
        lane = lane_name(queue.topic, queue.queue_id)
        self._turn.notify(self._sequences.table().put(sequence, lane, stored), stored)

    def _original(self, sequence: ProducerSequence, queue: ConsumeQueue, lane: Lane) -> Response:
        """Return the response that a repeated send got the first time, or, for older messages, one without offsets."""
        if lane.first != sequence.first:
            return Response(
                header=SendMessageResponseHeader(msg_id="", queue_id=queue.queue_id, queue_offset=-1),
                remark="stored before",
                ext=self._answers.ext,
            )
        records = self._store.records(lane.physical_offset, self._store.max_physical_offset)
        offsets = [offset for offset, _ in itertools.islice(records, sequence.count)]
        return self._answers.original(queue.queue_id, lane.queue_offset, offsets)


def _illegal(why: str) -> RefusedError:
    return RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {why}")


def run_record(producer: str, state: ProducerState, store_host: bytes, now_ms: int) -> InnerMessage:
    """Return the log record that begins a run and that keeps earlier runs fenced even if the sequence file is lost."""
    sequence = ProducerSequence(producer, state.batch, state.epoch, 0, 0, 0)
    return InnerMessage(
        PRODUCER_RUNS_TOPIC,
        0,
        b"",
        join_properties({PRODUCER_SEQUENCE: sequence.text()}),
        0,
        TRANSACTION_PREPARED,  # neither CometMQ nor Apache's brokers add such records to a queue
        now_ms,
        store_host,
    )
