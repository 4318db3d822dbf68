"""Requests to several queues in parallel, with retries and in order within each queue; contains no I/O.

A *request* consists of some messages for one queue. It is in flight (``opaque`` is set), or it pauses until ``due_at``,
or it is acknowledged and gone:

=============  ================================  ====================  ====================================
state          event                             next state            what happens
=============  ================================  ====================  ====================================
(new)          ``add``                           pauses, due now
pauses         ``due_at`` is reached, ``frame``  in flight             the driver sends the frame
in flight      answer of success                 (gone)                 ``acknowledged`` is called
in flight      answer in :data:`RETRYABLE`          pauses                the pause is twice the last one
in flight      another answer                    (gone)                 ``answered`` raises
any            ``broken``: connection lost       pauses                all requests to that broker
pauses         ends after its deadline           (gone)                ``answered`` or ``broken`` raises
=============  ================================  ====================  ====================================

The invariants:

* A queue has at most one request, in flight or in a pause, so a later request never overtakes an earlier one.
* A request is given up only with an error: if its broker refuses it, or if the next try would begin after its
  deadline (``timeout_s`` after it was added).

Faults: if a broker answers "not now" (:data:`RETRYABLE`), does not answer in time or closes the connection, it is
unknown whether the messages are stored. The pauses of different queues run in parallel. After a pause,
:meth:`Request.left` decides which messages are sent again: all, only those that the broker does not find, or none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cometmq.client.retries import LESS_SAFE, NOT_NOW, Pauses
from cometmq.errors import CometMQError
from cometmq.message.queues import Queue
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.errors import denial_step
from cometmq.remoting.security import Security

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 5.0
RETRYABLE: Final = NOT_NOW | LESS_SAFE
"""Response codes after which a retry may help: the message was not stored, or not as durably as configured."""
_ADVICE: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "the topic or broker does not allow writing: run cometmq topic list",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic on this broker with cometmq topic create",
    ResponseCode.PRODUCER_FENCED: "another attempt of this task has taken over and continues it",
    ResponseCode.SEQUENCE_GAP: "the broker lost acknowledged messages; the task sends them again when it is retried",
    ResponseCode.SEQUENCE_MISMATCH: "a retried task must produce the same rows in the same order",
}


class Request(Protocol):
    """Messages for one queue that are sent together; ``str`` describes the request in errors."""

    @property
    def queue(self) -> Queue:
        """Return the queue that the messages are for."""

    @property
    def size(self) -> int:
        """Return the total size of the messages in bytes."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def frame(self, opaque: int) -> bytes:
        """Encode the request."""

    def left(self) -> Self | None:
        """Return the messages to resend after a failure, or None if all are stored."""

    def acknowledged(self, answer: RemotingCommand) -> None:
        """Record that the broker has stored the messages."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """A sender's limits, and the next steps in its errors."""

    security: Security
    timeout_s: float
    """Maximum time until a request is acknowledged, including all retries."""
    answer_s: float
    """Maximum time to wait for a response."""
    error: type[CometMQError]
    """The error class for messages that a broker rejects or does not acknowledge in time."""
    too_large: str
    """The text of the next step in the error for a message that is too large."""
    too_late: str
    """The text of the next step in the error for messages that are not acknowledged in time."""
    first_pause_s: float = FIRST_PAUSE_SECONDS


@dataclass(slots=True)
class Sending:
    """A request that has not been acknowledged yet."""

    request: Request
    deadline: float
    due_at: float
    """The time at which the pause ends."""
    opaque: int | None = None
    """The opaque of the frame in flight, or None during a pause."""
    failures: int = 0


@dataclass(slots=True)
class Delivered:
    """Totals over a sender's requests."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    repeated: int = 0
    """Number of requests that were retried."""


class Outbox:
    """The requests that have not been acknowledged yet; times are in monotonic seconds."""

    def __init__(self, options: SenderOptions) -> None:
        self._options = options
        self._pauses = Pauses(options.first_pause_s, LONGEST_PAUSE_SECONDS)
        self._opaques = itertools.count(1)
        self.sendings: dict[Queue, Sending] = {}
        self.bytes = 0
        self.delivered = Delivered()

    def add(self, request: Request, now: float) -> None:
        """Add a request. Its queue must not have another unacknowledged request."""
        self._hold(Sending(request, now + self._options.timeout_s, now))

    def requests_to(self, broker: str) -> list[Sending]:
        """Return the requests for a broker."""
        return [sending for sending in self.sendings.values() if sending.request.queue.broker == broker]

    def unanswered_by(self, broker: str) -> set[int]:
        """Return the opaques of the requests to which a broker has not responded."""
        return {sending.opaque for sending in self.requests_to(broker) if sending.opaque is not None}

    def due(self, now: float) -> list[Sending]:
        """Return the requests that are due to be sent."""
        return [sending for sending in self.sendings.values() if sending.opaque is None and sending.due_at <= now]

    def frame(self, sending: Sending) -> bytes:
        """Return a request's frame, and mark the request as in flight."""
        sending.opaque = next(self._opaques)
        return sending.request.frame(sending.opaque)

    def reduce(self, sending: Sending, left: Request | None) -> None:
        """Reduce a request to the messages that have not been stored."""
        self._drop(sending)
        self.delivered.messages += len(sending.request) - (0 if left is None else len(left))
        if left is not None:
            sending.request = left
            self._hold(sending)
            self.delivered.repeated += 1

    def answered(self, broker: str, answer: RemotingCommand, now: float) -> None:
        """Handle a response.

        :raises CometMQError: ``options.error``: the broker refuses the messages, or no time is left to try again.
        """
        sending = next((of for of in self.requests_to(broker) if of.opaque == answer.opaque), None)
        if sending is None or not answer.is_response:
            return  # a request from the broker, or an answer to a request that was given up
        words = f"code {answer.code}: {answer.remark or 'no remark'}"
        if answer.code in RETRYABLE:
            self._pause([sending], f"broker {broker} responded with {words}", now)
            return
        self._drop(sending)
        if answer.code != ResponseCode.SUCCESS:
            raise self._options.error(
                f"broker {broker} rejected {sending.request}: {words}",
                next_step=self._options.too_large
                if answer.code == ResponseCode.MESSAGE_ILLEGAL
                else denial_step(answer.code, answer.remark) or _ADVICE.get(answer.code),
            )
        self.delivered.messages += len(sending.request)
        self.delivered.bytes += sending.request.size
        sending.request.acknowledged(answer)

    def broken(self, broker: str, reason: str, now: float) -> None:
        """Pause all requests to a broker because it is unknown whether it has stored them.

        :raises CometMQError: ``options.error``: no time is left to try again.
        """
        self._pause(self.requests_to(broker), f"broker {broker} does not respond: {reason}", now)

    def _pause(self, sendings: list[Sending], reason: str, now: float) -> None:
        for sending in sendings:
            sending.opaque = None
            sending.failures += 1
            sending.due_at = now + self._pauses.after(sending.failures)
            if sending.due_at > sending.deadline:
                raise self._options.error(
                    f"{sending.request}: it was not acknowledged within {self._options.timeout_s * 1000:.0f} "
                    f"ms; {reason}",
                    next_step=self._options.too_late,
                )

    def _hold(self, sending: Sending) -> None:
        self.sendings[sending.request.queue] = sending
        self.bytes += sending.request.size

    def _drop(self, sending: Sending) -> None:
        del self.sendings[sending.request.queue]
        self.bytes -= sending.request.size
