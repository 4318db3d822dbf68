"""Acknowledgements and failures, as the broker learns of them: by POP, and in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

from cometmq.client import MessageExt, PoppedMessage, Retry, SimpleConsumer, Suspend
from cometmq.client.consumer.listener import Verdict

RETRY_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds until a message that failed is received again, by its delivery attempt, as RocketMQ's consumers have it."""
_DEAD: Final = -1
"""The delay level that makes a message a dead letter."""


class PopSettlement:
    """Settles messages by their receipts."""

    def __init__(self, consumer: SimpleConsumer, nack_delay_s: float | None) -> None:
        self._consumer = consumer
        self._delay_s = nack_delay_s

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """The group has consumed the messages."""
        await self._consumer.ack(_popped(messages))

    async def nack(self, messages: Sequence[MessageExt], delay: float | None) -> None:
        """The group receives the messages again."""
        given = self._delay_s if delay is None else delay

        def later(message: PoppedMessage) -> Awaitable[None]:
            usual = RETRY_DELAYS_S[min(message.delivery_attempt, len(RETRY_DELAYS_S)) - 1]
            return self._consumer.change_invisible(message, usual if given is None else given)

        await _each(later, messages)

    async def reject(self, messages: Sequence[MessageExt]) -> None:
        """The messages are dead letters."""
        await _each(self._consumer.reject, messages)


async def _each(end: Callable[[PoppedMessage], Awaitable[None]], messages: Sequence[MessageExt]) -> None:
    """End each message, also after another one's failure: what is left out would be renewed as if it were handled."""
    outcomes = await asyncio.gather(*map(end, _popped(messages)), return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


def _popped(messages: Sequence[MessageExt]) -> list[PoppedMessage]:
    return cast("list[PoppedMessage]", list(messages))


class OrderedSettlement:
    """Keeps the verdicts of messages until their call of the listener returns."""

    dead: Final[Verdict] = Retry(delay_level=_DEAD)

    def __init__(self, nack_delay_s: float | None) -> None:
        self._delay_s = nack_delay_s
        self._verdicts: dict[int, Verdict] = {}
        self.dead_letters: set[str] = set()
        """The messages of batches that come again, by offset ID, which are dead letters already."""

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """The group has consumed the messages."""
        self._verdicts[id(messages[0])] = None

    async def nack(self, messages: Sequence[MessageExt], delay: float | None) -> None:
        """The queue waits, and the member receives the messages again."""
        self._verdicts[id(messages[0])] = Suspend(seconds=self._delay_s if delay is None else delay)

    async def reject(self, messages: Sequence[MessageExt]) -> None:
        """The messages are dead letters, and the queue goes on."""
        self._verdicts[id(messages[0])] = self.dead

    def verdict(self, messages: Sequence[MessageExt], handled: Sequence[MessageExt]) -> Verdict:
        """Return and forget the verdict on messages, of which some were handled; what nobody settled has failed."""
        verdict: Verdict = None
        if handled:
            verdict = self._verdicts.pop(id(handled[0]), Suspend(seconds=self._delay_s))
        if not isinstance(verdict, Suspend):
            self.dead_letters.difference_update(message.offset_msg_id for message in messages)
        return verdict
