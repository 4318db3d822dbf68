"""A message or batch that is being sent, and the meaning of its failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from cometmq.client.errors import BrokerError, MasterNotFoundError, RemotingConnectError
from cometmq.client.hooks import CommunicationMode, SendMessageContext
from cometmq.client.retries import BUSY
from cometmq.client.send.selection import QueueSelector, by_sharding_key
from cometmq.client.send_result import SendResult
from cometmq.errors import CometMQError
from cometmq.message.message import Message
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.connections.client_connection import Answer

Done = Callable[[int, list[SendResult] | BaseException], None]

_NOTHING_SENT: Final = (RemotingConnectError, MasterNotFoundError)
"""Errors which mean that a broker is absent, so that the message is certainly not stored."""


class AnswerHandler(Protocol):
    """Handles the responses to deliveries."""

    def answered(self, delivery: Delivery, answer: Answer) -> None:
        """Finish a delivery according to its response, or start another attempt."""


def _nobody_waits(index: int, outcome: list[SendResult] | BaseException) -> None:
    """Ignore the outcome of a delivery for which no caller waits."""


class Delivery(msgspec.Struct, eq=False):
    """A message or batch that is being sent; ``done(index, results or error)`` is called once."""

    sender: AnswerHandler
    code: int
    message: Message
    body: bytes
    properties_text: str
    sys_flag: int
    unique_keys: tuple[str, ...]
    retries: int
    born_timestamp: int
    begun_at: float
    deadline: float
    done: Done = _nobody_waits
    index: int = 0
    target: MessageQueue | None = None
    selector: QueueSelector | None = None
    sent_at: float = 0.0
    queue: MessageQueue | None = None
    request: RemotingCommand | None = None
    mode: CommunicationMode = CommunicationMode.SYNC
    batch: Sequence[Message] | None = None
    """The messages of a batch."""
    observed: SendMessageContext | None = None
    """The context that hooks received for the current attempt."""
    attempts: list[tuple[str, CometMQError]] | None = None
    stored: list[SendResult] | None = None
    """The results of an attempt with a status other than SEND_OK, while another attempt is made."""
    given_up: bool = False
    """True if no caller waits for the result. An attempt that has not been sent is then dropped."""

    def pin(
        self,
        queue: MessageQueue | None,
        sharding_key: str | None,
        selector: QueueSelector | None,
        timeout_s: float | None,
    ) -> None:
        """Set the queue and the time limit. Do not retry after an attempt that may have stored the message."""
        if queue is not None or selector is not None or sharding_key is not None:
            self.target = queue
            self.selector = by_sharding_key(sharding_key) if sharding_key is not None else selector
            self.retries = 0
        if timeout_s is not None:
            self.deadline = self.begun_at + timeout_s

    def has_another_attempt(self, next_at: float) -> bool:
        """Return whether another attempt is allowed that starts no earlier than ``next_at``.

        Only attempts that may have stored the message count against ``retries``.
        """
        if self.given_up or next_at >= self.deadline:
            return False
        failures = [error for _, error in self.attempts or ()]
        return certainly_unsent(failures[-1]) or sum(not certainly_unsent(error) for error in failures) <= self.retries

    def answered(self, answer: Answer) -> None:
        """Handle a response or a connection failure."""
        self.sender.answered(self, answer)


def certainly_unsent(error: CometMQError) -> bool:
    """Return whether the attempt certainly did not store the message."""
    if isinstance(error, BrokerError):
        return error.not_stored or error.code == BUSY
    return isinstance(error, _NOTHING_SENT) or getattr(error, "code", None) == BUSY
