"""Requests to several queues in parallel, in order for each queue, with retries: a protocol without sockets.

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
"""Codes after which a retry can help: the message is not stored, or is less durable than the broker's configuration
demands.
"""
_ADVICE: Final[dict[int, str]] = {
    ResponseCode.NO_PERMISSION: "the topic or its broker does not allow writing: see cometmq topic list",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic on this broker: cometmq topic create",
    ResponseCode.PRODUCER_FENCED: "another attempt of this task has taken over, which goes on with it",
    ResponseCode.SEQUENCE_GAP: "the broker lost messages that it had acknowledged; the repeated task sends them again",
    ResponseCode.SEQUENCE_MISMATCH: "the rows of a repeated task must be the same, in the same order",
}


class Request(Protocol):
    """Messages for one queue that are sent together; ``str`` describes the request in errors."""

    @property
    def queue(self) -> Queue:
        """Return the queue of the messages."""

    @property
    def size(self) -> int:
        """Return the bytes of the messages."""

    def __len__(self) -> int:
        """Return the number of messages."""

    def frame(self, opaque: int) -> bytes:
        """Encode the request."""

    def left(self) -> Self | None:
        """Return the messages to send again after a failure; None if all are stored."""

    def acknowledged(self, answer: RemotingCommand) -> None:
        """Record that the broker has stored the messages."""


@dataclass(frozen=True, slots=True)
class SenderOptions:
    """The limits of a sender, and the next steps in its errors."""

    security: Security
    timeout_s: float
    """Maximum time until a request is acknowledged, over all tries."""
    answer_s: float
    """Maximum time until an answer arrives."""
    error: type[CometMQError]
    """The error class for messages that a broker refuses or does not acknowledge in time."""
    too_large: str
    """The next step if a broker rejects a message as too large."""
    too_late: str
    """The next step if messages are not acknowledged in time."""
    first_pause_s: float = FIRST_PAUSE_SECONDS


@dataclass(slots=True)
class Sending:
    """A request that is not acknowledged yet."""

    request: Request
    deadline: float
    due_at: float
    """The time at which the pause ends."""
    opaque: int | None = None
    """The opaque of the frame in flight; None during a pause."""
    failures: int = 0


@dataclass(slots=True)
class Delivered:
    """Totals of a sender's requests."""

    messages: int = 0
    bytes: int = 0
    requests: int = 0
    repeated: int = 0
    """Number of requests that were sent again."""


class Outbox:
    """The requests that are not acknowledged yet; times are monotonic seconds."""

    def __init__(self, options: SenderOptions) -> None:
        self._options = options
        self._pauses = Pauses(options.first_pause_s, LONGEST_PAUSE_SECONDS)
        self._opaques = itertools.count(1)
        self.sendings: dict[Queue, Sending] = {}
        self.bytes = 0
        self.delivered = Delivered()

    def add(self, request: Request, now: float) -> None:
        """Add a request; its queue must not have another unacknowledged request."""
        self._hold(Sending(request, now + self._options.timeout_s, now))

    def requests_to(self, broker: str) -> list[Sending]:
        """Return the requests to a broker."""
        return [sending for sending in self.sendings.values() if sending.request.queue.broker == broker]

    def unanswered_by(self, broker: str) -> set[int]:
        """Return the opaques of the requests that a broker has not answered."""
        return {sending.opaque for sending in self.requests_to(broker) if sending.opaque is not None}

    def due(self, now: float) -> list[Sending]:
        """Return the requests that are due."""
        return [sending for sending in self.sendings.values() if sending.opaque is None and sending.due_at <= now]

    def frame(self, sending: Sending) -> bytes:
        """Return the frame of a request, and mark the request as in flight."""
        sending.opaque = next(self._opaques)
        return sending.request.frame(sending.opaque)

    def reduce(self, sending: Sending, left: Request | None) -> None:
        """Reduce a request to the messages that are not stored."""
        self._drop(sending)
        self.delivered.messages += len(sending.request) - (0 if left is None else len(left))
        if left is not None:
            sending.request = left
            self._hold(sending)
            self.delivered.repeated += 1

    def answered(self, broker: str, answer: RemotingCommand, now: float) -> None:
        """Handle an answer.

        :raises CometMQError: ``options.error``: the broker refuses the messages, or no time is left to try again.
        """
        sending = next((of for of in self.requests_to(broker) if of.opaque == answer.opaque), None)
        if sending is None or not answer.is_response:
            return  # a request of the broker's, or an answer to a request that was given up
        words = f"code {answer.code}: {answer.remark or 'no remark'}"
        if answer.code in RETRYABLE:
            self._pause([sending], f"broker {broker} answers {words}", now)
            return
        self._drop(sending)
        if answer.code != ResponseCode.SUCCESS:
            raise self._options.error(
                f"broker {broker} refuses {sending.request}: {words}",
                next_step=self._options.too_large
                if answer.code == ResponseCode.MESSAGE_ILLEGAL
                else denial_step(answer.code, answer.remark) or _ADVICE.get(answer.code),
            )
        self.delivered.messages += len(sending.request)
        self.delivered.bytes += sending.request.size
        sending.request.acknowledged(answer)

    def broken(self, broker: str, reason: str, now: float) -> None:
        """Pause all requests to a broker, since it is unknown whether it has stored them.

        :raises CometMQError: ``options.error``: no time is left to try again.
        """
        self._pause(self.requests_to(broker), f"broker {broker} does not answer: {reason}", now)

    def _pause(self, sendings: list[Sending], reason: str, now: float) -> None:
        for sending in sendings:
            sending.opaque = None
            sending.failures += 1
            sending.due_at = now + self._pauses.after(sending.failures)
            if sending.due_at > sending.deadline:
                raise self._options.error(
                    f"{sending.request}: not acknowledged within {self._options.timeout_s * 1000:.0f} ms; {reason}",
                    next_step=self._options.too_late,
                )

    def _hold(self, sending: Sending) -> None:
        self.sendings[sending.request.queue] = sending
        self.bytes += sending.request.size

    def _drop(self, sending: Sending) -> None:
        del self.sendings[sending.request.queue]
        self.bytes -= sending.request.size
