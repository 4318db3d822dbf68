"""Passes messages to a loop in the application instead of to a listener.

Theory of operation. Messages wait in lanes, one for each queue, and the loop receives them from the lanes in turn. A
delivered message is *open* until the application acknowledges it, asks for it again, or the stream ends. An open
message holds its queue's offset, as a running call of a listener does: it is in ``process_queue.running``, counts for
the limits of the queue, is sent back to the broker after ``consume_timeout_s``, and a hand-over of its queue waits for
it. So a message that is never acknowledged is never lost, and the number of open messages is bounded.

An orderly consumer calls :meth:`MessageStream.listen` as its listener, which adds the message to a lane and waits for
its verdict. So the next message of a queue is delivered only after the previous one was acknowledged.

At the end, open messages are released without counting as failed; the group receives them again. If a loop raised an
exception, the messages of its last step count as failed (:meth:`MessageStream.fail_last`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import deepcopy
from datetime import timedelta
from typing import Any, Final, Protocol

from cometmq.client.consumer.consume_service import YIELD_REQUESTS, OnVerdict
from cometmq.client.consumer.listener import ConsumeObservation, ConsumeResult, Retry, Suspend, Verdict, failed_messages
from cometmq.client.consumer.process_queue import ConsumeRequest, ProcessQueue
from cometmq.client.errors import ClientStateError, DeserializationError
from cometmq.client.hooks import ConsumeMessageContext, ConsumeReturnType
from cometmq.client.serialization import DecodedMessage, Deserializer
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)

_CLEAN_UP_AT: Final = 1024
"""Number of open messages at which finished messages are removed for the first time; this number doubles each time.
"""

LEVELS_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""A broker's default delay levels (``messageDelayLevel``) in seconds."""


def delay_level_for(seconds: float) -> int:
    """Return the first delay level of at least ``seconds``.

    :raises ValueError: ``seconds`` is below 0, or above the last level.
    """
    if not 0 <= seconds <= LEVELS_S[-1]:
        raise ValueError(f"a retry delay must be from 0 to {LEVELS_S[-1]} s, not {seconds:g} s")
    return next(level for level, delay_s in enumerate(LEVELS_S, 1) if delay_s >= seconds)


class LaneMessage(Protocol):
    """A message waiting in a lane."""

    @property
    def message(self) -> MessageExt:
        """Return the received message."""

    def begin(self) -> bool:
        """Mark the message as open; return False if it no longer belongs to this member."""

    def wait_again(self) -> Hashable:
        """Return an opened message to its lane (the waiting messages of its queue)."""

    def end(self, verdict: Verdict) -> None:
        """Close the message."""

    def give_up(self) -> None:
        """Close the message without a verdict."""

    @property
    def is_over(self) -> bool:
        """Return whether the broker or another member has the message again, so that a verdict has no effect."""


class _RequestMessage:
    """A message of a concurrent consumer."""

    __slots__ = ("_on_verdict", "_request")

    def __init__(self, request: ConsumeRequest, on_verdict: OnVerdict) -> None:
        self._request = request
        self._on_verdict = on_verdict

    @property
    def message(self) -> MessageExt:
        return self._request.messages[0]

    def begin(self) -> bool:
        if self._request.process_queue.dropped:
            return False
        self._request.process_queue.running.add(self._request)
        return True

    def wait_again(self) -> Hashable:
        self._request.process_queue.end_request(self._request)
        return self._request.process_queue

    def end(self, verdict: Verdict) -> None:
        self._on_verdict(self._request, verdict)

    def give_up(self) -> None:
        self._request.process_queue.end_request(self._request)

    @property
    def is_over(self) -> bool:
        return self._request.done or self._request.process_queue.is_released


class _CallMessage:
    """A message of an orderly consumer; a call to :meth:`MessageStream.listen` waits for its verdict."""

    __slots__ = ("message", "verdict")

    def __init__(self, message: MessageExt, verdict: asyncio.Future[Verdict]) -> None:
        self.message = message
        self.verdict = verdict

    def begin(self) -> bool:
        return not self.verdict.done()

    def wait_again(self) -> Hashable:
        return None

    def end(self, verdict: Verdict) -> None:
        if not self.verdict.done():
            self.verdict.set_result(verdict)

    def give_up(self) -> None:
        self.end(Suspend(seconds=0.0))

    @property
    def is_over(self) -> bool:
        return self.verdict.done()


class _DetachedStream:
    """Stands in for the stream of a message that was copied to another process or to a file."""

    orderly: Final = False

    def settle(self, message: ReceivedMessage, _verdict: Verdict) -> None:
        """Reject the verdict because the consumer is in another process.

        :raises ClientStateError: always.
        """
        raise ClientStateError(
            f"the consumer of message {message.msg_id} is in another process",
            next_step="return the result to the process with the consumer, and call ack, retry or reject there",
        )


class ReceivedMessage(DecodedMessage, eq=False, kw_only=True):
    """A message from a loop over a push consumer; it is consumed when :meth:`ack` is called.

    The methods may be called in any order and from any thread; the first call takes effect. If none is called, the
    message is delivered to the group again: after ``consume_timeout_s``, or when the consumer is closed. Copies are the
    same message; other processes can read a pickled message, but cannot acknowledge it.
    """

    _stream: MessageStream | _DetachedStream = _DetachedStream()
    _taken: LaneMessage | None = None
    _context: ConsumeMessageContext | None = None

    def ack(self) -> None:
        """Acknowledge the message as consumed."""
        self._stream.settle(self, None)

    def retry(self, after: float | timedelta | None = None) -> None:
        """Mark the message as failed, so that it is delivered again.

        :param after: seconds, rounded up to a delay level (an orderly consumer waits exactly this time); by default the
            broker chooses by the number of failures.
        :raises ValueError: ``after`` is below 0 or above two hours.
        """
        if after is None:
            self._stream.settle(self, ConsumeResult.RECONSUME_LATER)
            return
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        level = delay_level_for(seconds)
        self._stream.settle(self, Suspend(seconds=seconds) if self._stream.orderly else Retry(delay_level=level))

    def reject(self) -> None:
        """Send the message to the dead-letter topic immediately."""
        self._stream.settle(self, Retry(delay_level=-1))

    def __deepcopy__(self, memo: dict[int, Any]) -> ReceivedMessage:
        make, arguments = self.__reduce__()
        copied: ReceivedMessage = make(*deepcopy(arguments, memo))
        copied._stream, copied._taken, copied._context = self._stream, self._taken, self._context
        return copied


class Batch(list[ReceivedMessage]):
    """The messages from one step of ``PushConsumer.batches``; each message can also be acknowledged on its own."""

    def ack(self) -> None:
        """Acknowledge all messages as consumed."""
        for message in self:
            message.ack()

    def retry(self, after: float | timedelta | None = None) -> None:
        """Mark all messages as failed; see :meth:`ReceivedMessage.retry`."""
        for message in self:
            message.retry(after)


class MessageStream:
    """A push consumer's messages for the application's loops.

    :param orderly: the messages are passed to :meth:`listen`.
    :param on_verdict: called with each concurrent request and its verdict.
    :param observation: the hooks of the consumer.
    """

    def __init__(
        self,
        on_verdict: OnVerdict,
        *,
        orderly: bool,
        deserializer: Deserializer | None,
        observation: ConsumeObservation | None,
    ) -> None:
        self.orderly: Final = orderly
        self.deserializer: Final = deserializer
        self._on_verdict = on_verdict
        self._observation = observation
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Hashable, deque[LaneMessage]] = {}
        self._open: dict[LaneMessage, ReceivedMessage] = {}
        self._last: Sequence[ReceivedMessage] = ()
        self._arrived = asyncio.Event()
        self._closed = False
        self._steps = 0
        self._look_at = _CLEAN_UP_AT

    # --- arrival ---

    def submit(self, requests: list[ConsumeRequest]) -> None:
        """Append requests, each with one message, to their queue's lane."""
        for queue in [lane for lane in self._lanes if isinstance(lane, ProcessQueue) and lane.dropped]:
            del self._lanes[queue]
        self._put(requests[0].process_queue, (_RequestMessage(request, self._on_verdict) for request in requests))

    async def listen(self, messages: Sequence[MessageExt]) -> Verdict:
        """Wait for the application's verdict on a single message, and return it."""
        if self._closed:
            return ConsumeResult.RECONSUME_LATER
        (message,) = messages
        verdict: asyncio.Future[Verdict] = self._loop.create_future()
        self._put(None, [_CallMessage(message, verdict)])
        return await verdict

    def _put(self, lane: Hashable, taken: Iterable[LaneMessage]) -> None:
        self._lanes.setdefault(lane, deque()).extend(taken)
        self._arrived.set()

    def close(self) -> None:
        """Release all messages and end the loops."""
        self._closed = True
        for lane in self._lanes.values():
            for taken in lane:
                taken.give_up()
        self._lanes.clear()
        for message in list(self._open.values()):
            self._give_up(message)
        self._arrived.set()

    # --- delivery ---

    async def next(self, limit: int) -> Batch:
        """Wait for messages; return up to ``limit`` of them, or an empty list if the stream is closed."""
        self._steps += 1
        if self._steps % YIELD_REQUESTS == 0:
            await asyncio.sleep(0)
        while True:
            batch = self._take(limit)
            if batch or self._closed:
                self._last = batch
                return batch
            self._arrived.clear()
            await self._arrived.wait()

    def _take(self, limit: int) -> Batch:
        batch = Batch()
        lanes = self._lanes
        while lanes and len(batch) < limit:
            name = next(iter(lanes))
            lane = lanes.pop(name)
            taken = lane.popleft()
            if lane:
                lanes[name] = lane  # the next call begins with the other lanes
            if taken.begin():
                found = taken.message
                message = ReceivedMessage(
                    *found.place, found.broker_name, deserializer=self.deserializer, _stream=self, _taken=taken
                )
                self._open[taken] = message
                self._begin(message)
                if self._can_be_read(message):
                    batch.append(message)
        return batch

    def _begin(self, message: ReceivedMessage) -> None:
        if len(self._open) > self._look_at:
            for other in [other for taken, other in self._open.items() if taken.is_over]:
                self._close(other, ConsumeReturnType.EXCEPTION)
            self._look_at = max(_CLEAN_UP_AT, 2 * len(self._open))
        if self._observation is not None:
            message._context = self._observation.begin([message])

    def _can_be_read(self, message: ReceivedMessage) -> bool:
        """Return whether the body can be decoded; if not, mark the message as failed."""
        if self.deserializer is None:
            return True
        try:
            _ = message.value
        except DeserializationError as error:
            log.error("%s", error)
            self._end(message, ConsumeResult.RECONSUME_LATER, ConsumeReturnType.EXCEPTION)
            return False
        return True

    def give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Put back undelivered messages from the last step; they are delivered before all others."""
        for message in reversed(list(messages)):
            taken = self._close(message, ConsumeReturnType.EXCEPTION)
            if taken is not None:
                lane = taken.wait_again()
                self._lanes = {lane: deque([taken, *self._lanes.pop(lane, ())]), **self._lanes}
                self._arrived.set()

    # --- verdicts ---

    def settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        """Close an open message; can be called from any thread."""
        if asyncio._get_running_loop() is self._loop:
            self._settle(message, verdict)
            return
        try:
            self._loop.call_soon_threadsafe(self._settle, message, verdict)
        except RuntimeError:
            log.debug("the event loop ended before %s was acknowledged", message.msg_id)

    def _settle(self, message: ReceivedMessage, verdict: Verdict) -> None:
        failed = failed_messages([message], verdict)
        self._end(message, verdict, ConsumeReturnType.FAILED if failed else ConsumeReturnType.SUCCESS)

    def _end(self, message: ReceivedMessage, verdict: Verdict, kind: ConsumeReturnType) -> None:
        taken = self._close(message, kind)
        if taken is not None:
            taken.end(verdict)

    def _give_up(self, message: ReceivedMessage) -> None:
        taken = self._close(message, ConsumeReturnType.EXCEPTION)
        if taken is not None:
            taken.give_up()

    def _close(self, message: ReceivedMessage, kind: ConsumeReturnType) -> LaneMessage | None:
        taken = message._taken
        if taken is None or self._open.pop(taken, None) is None:
            return None
        if self._observation is not None and message._context is not None:
            self._observation.end(message._context, kind)
        return taken

    def fail_last(self, logged: Callable[[ReceivedMessage], object]) -> None:
        """Mark the open messages of the last step as failed because the loop raised an exception."""
        for message in self._last:
            if message._taken in self._open:
                logged(message)
                self._end(message, ConsumeResult.RECONSUME_LATER, ConsumeReturnType.EXCEPTION)
