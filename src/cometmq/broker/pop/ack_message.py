"""Acknowledges popped messages and changes their invisible time: ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151) and
CHANGE_MESSAGE_INVISIBLETIME (200053).

(``AckMessageProcessor``, ``ChangeInvisibleTimeProcessor``.) A receipt handle is valid while its message is invisible
and has the same pop time. As in Apache's broker, an invalid handle gets the same response, but changes nothing. A
change returns a handle with a later pop time, even if two changes happen in the same millisecond.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from cometmq.broker.context import BrokerContext
from cometmq.broker.limits import (
    MAX_ACK_BITS_CHARS,
    MAX_ACKED_MESSAGES,
    MAX_ACKS,
    MAX_BATCH_ACK_BYTES,
    MAX_POP_INVISIBLE_MS,
)
from cometmq.broker.pop.entries import Acked, Changed
from cometmq.broker.pop.left_behind import LeftBehind
from cometmq.broker.pop.pop_log import PopLog
from cometmq.broker.pop.pop_long_polling import PopLongPollingService
from cometmq.broker.pop.pop_message import check_queue, has_too_many_in_flight
from cometmq.broker.pop.reads import PopReads
from cometmq.broker.pop.state import PopQueue
from cometmq.broker.turn.answers import FLUSH_IS_LATE, OneAnswer
from cometmq.broker.turn.targets import TOPIC_HELP, RefusedError
from cometmq.message.pop_info import HandleError, ReceiptHandle, is_retry_of, parse_handle, real_topic
from cometmq.remoting.bodies import BodyError, decode_request
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import NoHeader
from cometmq.remoting.permissions import Action, Kind, Need, needs_of_body, needs_popped, on_group, on_topic
from cometmq.remoting.pop_headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
)
from cometmq.remoting.pop_requests import BatchAck, BatchAckMessageRequestBody
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection

Popped = tuple[str, str, str, int, int, int]
"""A popped message: broker name, topic, group, queue ID, offset and pop time."""
PoppedTogether = tuple[str, str, int, int, list[int]]
"""Messages of one pop from a queue: topic, group, queue ID, pop time and offsets."""
Answered = Callable[[Sequence[int], int, str | None], None]
"""Called with the positions of acknowledged messages, a response code and a remark."""


class LiteEnds(Protocol):
    """Handles the requests about messages of lite topics."""

    def ack(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Acknowledge a message."""

    def change(self, connection: ServerConnection, request: Request[Any]) -> Response | None:
        """Change the invisible time of a message."""


def batch_needs(body: bytes) -> Iterator[Need]:
    """Yield the permissions required by a batch of acknowledgements."""
    pairs = {(ack.topic, ack.group, ack.retry) for ack in _batch(body).acks}
    for topic, group, retry in sorted(pairs):
        yield on_group(group, Action.SUB)
        popped_from = real_topic(topic, group, retry)
        if is_retry_of(popped_from, group):
            yield Need(Kind.GROUP, group, (Action.SUB,), popped_from)
        else:
            yield on_topic(popped_from, Action.SUB)


class AckMessageProcessor:
    """Acknowledges popped messages and changes their invisible time."""

    def __init__(
        self, broker: BrokerContext, log: PopLog, polling: PopLongPollingService, reads: PopReads, left: LeftBehind
    ) -> None:
        self._left = left
        self._topics = broker.topics
        self._offsets = broker.offsets
        self._store = broker.store
        self._live = broker.live
        self._clock = broker.clock
        self._log = log
        self._polling = polling
        self._reads = reads
        self.of_lite: LiteEnds | None = None
        """Handles the requests about messages of lite topics."""

    @answers(RequestCode.ACK_MESSAGE, header=AckMessageRequestHeader, permission=needs_popped(Action.SUB))
    def ack(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Acknowledge a message, so that it is not handed out again."""
        header: AckMessageRequestHeader = request.header
        if header.lite_topic and self.of_lite is not None:
            return self.of_lite.ack(connection, request, b"")
        self._check_offset(connection, header.topic, header.queue_id, header.offset)
        handle = read_handle(header.extra_info)
        found = self._find_queue(header.topic, header.consumer_group, header.queue_id)
        if found is None or not is_handed_out(found, header.offset, handle.pop_time):
            return Response()
        self._log.check()
        self._acknowledge(found, [header.offset], handle.pop_time)
        self._left.ended(connection, found, [header.offset])
        self._answer_when_stored(connection, request, Response(), [found])
        return None

    @answers(
        RequestCode.BATCH_ACK_MESSAGE,
        header=NoHeader,
        limits=("MAX_BATCH_ACK_BYTES", "MAX_ACKS", "MAX_ACK_BITS_CHARS", "MAX_ACKED_MESSAGES"),
        permission=needs_of_body(batch_needs, "Topic and Group:`acks` Sub"),
    )
    def batch_ack(self, connection: ServerConnection, request: Request[Any], body: bytes) -> Response | None:
        """Acknowledge a batch of messages."""
        acks = _batch(body).acks
        if not acks:
            return Response(ResponseCode.NO_MESSAGE)
        if len(acks) > MAX_ACKS:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"the request has {len(acks)} acks; the maximum is {MAX_ACKS}"
            )
        ends: list[tuple[PopQueue, list[int], int]] = []
        room = MAX_ACKED_MESSAGES
        for ack in acks:
            found = self._find_queue(real_topic(ack.topic, ack.group, ack.retry), ack.group, ack.queue_id)
            if found is None:
                continue
            named = acked_offsets(ack, room)
            room -= len(named)
            offsets = [offset for offset in named if is_handed_out(found, offset, ack.pop_time)]
            if offsets:
                ends.append((found, offsets, ack.pop_time))
        if not ends:
            return Response()
        self._log.check()
        for found, offsets, pop_time in ends:
            self._acknowledge(found, offsets, pop_time)
            self._left.ended(connection, found, offsets)
        self._answer_when_stored(connection, request, Response(), [found for found, *_ in ends])
        return None

    @answers(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        header=ChangeInvisibleTimeRequestHeader,
        limits=("MAX_POP_INVISIBLE_MS",),
        permission=needs_popped(Action.SUB),
    )
    def change(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Make a message visible again ``invisibleTime`` from now."""
        header: ChangeInvisibleTimeRequestHeader = request.header
        if header.lite_topic and self.of_lite is not None:
            return self.of_lite.change(connection, request)
        self._check_offset(connection, header.topic, header.queue_id, header.offset)
        handle = read_handle(header.extra_info)
        if not 0 <= header.invisible_time <= MAX_POP_INVISIBLE_MS:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime[{header.invisible_time}] is illegal, use 0 to {MAX_POP_INVISIBLE_MS} milliseconds",
            )
        now_ms = self._clock.now_ms()
        found = self._find_queue(header.topic, header.consumer_group, header.queue_id)
        if found is None or not is_handed_out(found, header.offset, handle.pop_time):
            return _changed_response(now_ms, header.invisible_time, handle)
        if found.ordered is not None and header.offset in found.ordered.messages:
            # A handle of an ordered pop keeps its pop time.
            pop_time, invisible_ms = handle.pop_time, now_ms + header.invisible_time - handle.pop_time
        else:
            pop_time, invisible_ms = max(now_ms, handle.pop_time + 1), header.invisible_time
        self._log.check()
        self._log.add(Changed(*found.key, handle.pop_time, header.offset, pop_time, invisible_ms))
        self._left.changed(connection, found, header.offset, pop_time)
        self._answer_when_stored(connection, request, _changed_response(pop_time, invisible_ms, handle))
        return None

    # --- acknowledging -----------------------------------------------------------------------------------
    def acknowledge_handed_out(self, broker_name: str, handles: Sequence[Popped], answered: Answered) -> Sequence[int]:
        """Acknowledge messages that are handed out; return the positions of the others, which need a request each.

        :param broker_name: this broker's name; the messages of another broker are others.
        :param answered: called once when it is known whether the acknowledgements are stored; not called if all
            messages are others.
        """
        try:
            self._log.check()
        except RefusedError:
            return range(len(handles))
        taken: list[int] = []
        others: list[int] = []
        ends: dict[tuple[PopQueue, int], list[int]] = {}
        for position, (broker, topic, group, queue_id, offset, pop_time) in enumerate(handles):
            found = self._find_queue(topic, group, queue_id) if broker == broker_name else None
            if found is None or not is_handed_out(found, offset, pop_time) or not self._has(topic, queue_id, offset):
                others.append(position)
            else:
                taken.append(position)
                ends.setdefault((found, pop_time), []).append(offset)
        if ends:
            for (found, pop_time), offsets in ends.items():
                self._acknowledge(found, offsets, pop_time)
            self._call_when_stored(partial(answered, taken), [found for found, _ in ends])
        return others

    def acknowledge_all(self, pops: Sequence[PoppedTogether], answered: Callable[[int, str | None], None]) -> bool:
        """Acknowledge messages if all of them are handed out and none is named twice; return whether they are.

        :param answered: called once, with a response code and a remark, when it is known whether the acknowledgements
            are stored.
        """
        try:
            self._log.check()
        except RefusedError:
            return False
        ends: dict[tuple[PopQueue, int], list[int]] = {}
        for topic, group, queue_id, pop_time, offsets in pops:
            found = self._find_queue(topic, group, queue_id)
            if (
                found is None
                or (found, pop_time) in ends  # a retry topic has two names
                or len(set(offsets)) != len(offsets)
                or not self._has(topic, queue_id, min(offsets))
                or not (
                    found.invisible.has_all(offsets, pop_time)
                    or all(is_handed_out(found, offset, pop_time) for offset in offsets)
                )
            ):
                return False
            ends[found, pop_time] = offsets
        for (found, pop_time), offsets in ends.items():
            self._acknowledge(found, offsets, pop_time)
        self._call_when_stored(answered, [found for found, _ in ends])
        return True

    def _has(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue exists and has an offset, which is below its end."""
        config = self._topics.get(topic)
        return (
            config is not None
            and 0 <= queue_id < config.read_queue_nums
            and offset >= self._store.extent(topic, queue_id)[0]
        )

    def _call_when_stored(self, answered: Callable[[int, str | None], None], ended: Sequence[PopQueue]) -> None:
        is_answered = False

        def answer(code: int, remark: str | None) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                answered(code, remark)

        def stored(refusal: RefusedError | None) -> None:
            if refusal is None:
                answer(ResponseCode.SUCCESS, None)
            else:
                self._restore_offsets(ended)
                answer(refusal.code, refusal.remark)

        self._log.when_stored(stored, lambda: answer(FLUSH_IS_LATE.code, FLUSH_IS_LATE.remark))

    def _restore_offsets(self, ended: Sequence[PopQueue]) -> None:
        """Restore the offsets of ordered queues whose acknowledgements were not stored."""
        for queue in ended:
            if queue.ordered is not None:
                self._offsets.set_offset(queue.group, queue.topic, queue.queue_id, queue.ordered.committed)

    def _acknowledge(self, queue: PopQueue, offsets: list[int], pop_time: int) -> None:
        ordered = queue.ordered
        before, was_full = (None, False) if ordered is None else (ordered.committed, ordered.is_full)
        had_enough = has_too_many_in_flight(self._live.current, queue)
        self._log.add(Acked(*queue.key, pop_time, offsets))
        if had_enough:
            self._polling.arrived([self._store.queue(queue.topic, queue.queue_id)])
        if ordered is not None:
            if ordered.committed != before and self._offsets.query(queue.group, queue.topic, queue.queue_id) == before:
                self._offsets.set_offset(queue.group, queue.topic, queue.queue_id, ordered.committed)
            if was_full or ordered.may_pop_more(self._clock.now_ms()):
                self._polling.wake(queue.topic, queue.group)

    def _answer_when_stored(
        self, connection: ServerConnection, request: Request[Any], response: Response, ended: Sequence[PopQueue] = ()
    ) -> None:
        answer = OneAnswer(connection, request)

        def stored(refusal: RefusedError | None) -> None:
            if refusal is not None:
                self._restore_offsets(ended)
            answer.respond(response if refusal is None else refusal.response())

        self._log.when_stored(stored, answer.respond_flush_timeout)

    def _find_queue(self, topic: str, group: str, queue_id: int) -> PopQueue | None:
        return self._log.state.find(topic, group, queue_id)

    # --- checks, in Apache's order --------------------------------------------------------------
    def _check_queue(self, connection: ServerConnection, topic: str, queue_id: int) -> None:
        found = self._topics.get(topic)
        if found is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {TOPIC_HELP}"
            )
        check_queue(found, queue_id, connection, lowest=0)

    def _check_offset(self, connection: ServerConnection, topic: str, queue_id: int, offset: int) -> None:
        self._check_queue(connection, topic, queue_id)
        queue = self._store.find_queue(topic, queue_id)
        low, high = (0, 0) if queue is None else (self._reads.first_offset(queue, offset), queue.max_offset())
        if not low <= offset <= high:
            raise RefusedError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )


def is_handed_out(queue: PopQueue, offset: int, pop_time: int) -> bool:
    """Return whether a message is currently handed out (invisible) since a pop with this pop time."""
    times = queue.invisible.find(offset)
    if times is not None and times[0] == pop_time:
        return True
    return queue.ordered is not None and queue.ordered.held(offset, pop_time) is not None


def read_handle(text: str) -> ReceiptHandle:
    """Parse the receipt handle in a request.

    :raises RefusedError: the handle is malformed.
    """
    try:
        return parse_handle(text)
    except HandleError as error:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None


def acked_offsets(ack: BatchAck, most: int) -> list[int]:
    """Return the offsets that a batch acknowledges.

    :raises RefusedError: the bits are not Base64, or too many bits are set.
    """
    if len(ack.bits) > MAX_ACK_BITS_CHARS:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"the bits (b) of an ack have {len(ack.bits)} characters; the maximum is {MAX_ACK_BITS_CHARS}",
        )
    try:
        bits = base64.b64decode(ack.bits, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(ResponseCode.SYSTEM_ERROR, "the bits (b) of an ack are not valid base64") from None
    if int.from_bytes(bits, "little").bit_count() > most:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"a request may acknowledge at most {MAX_ACKED_MESSAGES} messages; send smaller batches",
        )
    return [
        ack.start_offset + 8 * at + bit for at, byte in enumerate(bits) if byte for bit in range(8) if byte >> bit & 1
    ]


def _changed_response(pop_time: int, invisible_ms: int, handle: ReceiptHandle) -> Response:
    return Response(0, ChangeInvisibleTimeResponseHeader(pop_time, invisible_ms, handle.revive_queue))


def _batch(body: bytes) -> BatchAckMessageRequestBody:
    try:
        if not body:
            return BatchAckMessageRequestBody()
        return decode_request(BatchAckMessageRequestBody, body, MAX_BATCH_ACK_BYTES)
    except BodyError as error:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
