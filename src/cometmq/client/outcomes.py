"""Collects the outcomes of many messages in flight, with one wake-up instead of one per message."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cometmq.client.errors import ClientError, ClientStateError
from cometmq.client.send_result import SendResult


class PartlySentError(ClientError):
    """Some messages of a list were not stored.

    ``outcomes`` has one entry per message, in the order given: its result, or why it failed.
    """

    def __init__(self, outcomes: Sequence[SendResult | BaseException]) -> None:
        failed = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        super().__init__(
            f"{len(failed)} of {len(outcomes)} messages were not sent, the first one because: {failed[0]}",
            code=getattr(failed[0], "code", None),
            next_step="send those again whose entry in outcomes is an error",
        )
        self.outcomes = tuple(outcomes)


class Single:
    """The outcome of one message, for one waiter."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()

    def done(self, index: int, outcome: list[SendResult] | BaseException) -> None:
        """Wake the waiter."""
        if self.future.done():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(raisable(outcome))
        else:
            self.future.set_result(outcome)


class Many:
    """The outcomes of a list of deliveries; each stands for one message or for a batch of several.

    :param positions: for each delivery the places of its messages in the list.
    :param total: how many messages there are.
    """

    def __init__(self, positions: Sequence[Sequence[int]] | None, total: int) -> None:
        self.in_flight = 0
        self._positions = positions
        self._outcomes: list[SendResult | BaseException | None] = [None] * total
        self.failed = False
        """Whether one has failed so far."""
        self._waiter: asyncio.Future[None] | None = None
        self._wake_at = 0

    def done(self, index: int, outcome: list[SendResult] | BaseException) -> None:
        """Keep the outcome of delivery ``index``."""
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
        """Note that delivery ``index`` was not even begun."""
        self.in_flight += 1
        self.done(index, ClientError(why, next_step="send it again after those before it"))

    async def until(self, in_flight: int) -> None:
        """Wait until at most ``in_flight`` deliveries are on their way."""
        if self.in_flight > in_flight:
            self._wake_at = in_flight
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def results(self) -> list[SendResult]:
        """The result of every message.

        :raises PartlySentError: some failed.
        """
        if self.failed:
            raise PartlySentError([outcome for outcome in self._outcomes if outcome is not None])
        return [outcome for outcome in self._outcomes if isinstance(outcome, SendResult)]


def raisable(error: BaseException) -> BaseException:
    """A failure as the caller gets it: a cancelled task means that the producer was closed."""
    if isinstance(error, asyncio.CancelledError):
        return ClientStateError("the producer was closed before the message was answered")
    if isinstance(error, StopIteration | StopAsyncIteration | GeneratorExit):  # no future and no coroutine raises these
        failure = ClientError(f"{error!r} was raised while the message was sent", next_step="look at the selector")
        failure.__cause__ = error
        return failure
    return error
