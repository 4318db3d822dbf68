"""Results of sends, for a single message or for many messages at a time (``SendResult``, ``SendStatus``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final

import msgspec

from cometmq.client.errors import ClientError, ClientStateError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import ResponseCode


class SendStatus(Enum):
    """The durability of a stored message."""

    SEND_OK = "SEND_OK"
    """Stored as durably as the broker's configuration requires."""
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    """Stored, but not yet flushed to disk (SYNC_FLUSH)."""
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    """Stored, but not yet confirmed by a slave (SYNC_MASTER)."""
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    """Stored, but no slave is available (SYNC_MASTER)."""


STATUS_BY_CODE: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a send: the position of the stored message."""

    status: SendStatus
    msg_id: str
    """The client's id (UNIQ_KEY), which consumers receive as ``msg_id``."""
    offset_msg_id: str
    """The broker's id: the broker's address and the log offset, in hex."""
    queue: MessageQueue
    queue_offset: int
    recall_handle: str | None = None
    """The argument for ``Producer.recall``; brokers return it for messages with arbitrary delays (RocketMQ since
    5.3.2).
    """


class PartlySentError(ClientError):
    """Some of the messages in a list were not stored.

    ``outcomes`` has one entry for each message, in the given order: its result or its failure.
    """

    def __init__(self, outcomes: Sequence[SendResult | BaseException]) -> None:
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        super().__init__(
            f"{len(failed)} of {len(outcomes)} messages were not sent; the first error is: {failed[0]}",
            code=getattr(failed[0], "code", None),
            next_step="resend the messages whose entry in outcomes is an error",
        )
        self.outcomes = tuple(outcomes)


class Single:
    """The outcome of one delivery, for one waiting caller."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()

    def done(self, _index: int, outcome: list[SendResult] | BaseException) -> None:
        """Wake the waiting caller."""
        if self.future.done():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(raisable(outcome))
        else:
            self.future.set_result(outcome)


class Many:
    """The outcomes of many deliveries, for one waiting caller.

    :param positions: for each delivery the positions of its messages in the list.
    :param total: the number of messages.
    """

    def __init__(self, positions: Sequence[Sequence[int]] | None, total: int) -> None:
        self.in_flight = 0
        self._positions = positions
        self._outcomes: list[SendResult | BaseException | None] = [None] * total
        self.failed = False
        """True once a delivery has failed."""
        self._waiter: asyncio.Future[None] | None = None
        self._wake_at = 0

    def done(self, index: int, outcome: list[SendResult] | BaseException) -> None:
        """Store the outcome of delivery ``index``."""
        self.in_flight -= 1
        if isinstance(outcome, BaseException):
            self.failed = True
            error = raisable(outcome)
            for position in (index,) if self._positions is None else self._positions[index]:
                self._outcomes[position] = error
        elif self._positions is None:
            self._outcomes[index] = outcome[0]
        else:
            for position, result in zip(self._positions[index], outcome, strict=True):
                self._outcomes[position] = result
        if self._waiter is not None and self.in_flight <= self._wake_at:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    def give_up(self, index: int, why: str) -> None:
        """Mark delivery ``index`` as failed without starting it."""
        self.in_flight += 1
        self.done(index, ClientError(why, next_step="send it again after the messages before it"))

    async def until(self, in_flight: int) -> None:
        """Wait until at most ``in_flight`` deliveries are in progress."""
        if self.in_flight > in_flight:
            self._wake_at = in_flight
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def results(self) -> list[SendResult]:
        """Return the result for every message.

        :raises PartlySentError: some messages failed.
        """
        if self.failed:
            raise PartlySentError([outcome for outcome in self._outcomes if outcome is not None])
        return [outcome for outcome in self._outcomes if isinstance(outcome, SendResult)]


def raisable(error: BaseException) -> BaseException:
    """Return the error to raise in the caller; a cancelled task means that the producer was closed."""
    if isinstance(error, asyncio.CancelledError):
        return ClientStateError(
            "the producer was closed before the broker responded",
            next_step="check whether the message is stored or send it again, and increase close_timeout_s",
        )
    if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):  # no future and no coroutine raises these
        failure = ClientError(f"sending the message raised {error!r}", next_step="check the selector")
        failure.__cause__ = error
        return failure
    return error
