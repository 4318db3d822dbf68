"""The messages that a consumer of a test has collected, and what the test expects of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, Generic, TypeVar

from cometmq.clock import Clock
from cometmq.message.message import MessageExt
from cometmq.testing.clock import wait_until

Collected = TypeVar("Collected", bound=MessageExt)
WITHIN_SECONDS: Final = 5.0
"""Default time limit for an expectation, in seconds on the cluster's clock."""
LISTED: Final = 20
"""Maximum number of messages, topics or lite topics that an error text lists."""
_BODY_BYTES: Final = 60


class ExpectationError(AssertionError):
    """The expected messages did not arrive. The error lists the messages that arrived and says where the missing ones
    are.
    """


class Collection(ABC, Generic[Collected]):
    """Messages in their order of arrival, each of which is returned once."""

    def __init__(self, clock: Clock) -> None:
        self.messages: Final[list[Collected]] = []
        """All messages that have arrived, in order of arrival; redelivered messages appear again."""
        self._clock = clock
        self._handed_out = 0

    @property
    def waiting(self) -> list[Collected]:
        """Messages that have arrived but have not been returned yet."""
        return self.messages[self._handed_out :]

    async def expect(self, count: int, within: float | timedelta = WITHIN_SECONDS) -> list[Collected]:
        """Return the next ``count`` messages; wait for them for up to ``within`` seconds on the cluster's clock.

        A :class:`~cometmq.testing.VirtualClock` is moved as far as needed and no further; see
        :func:`~cometmq.testing.wait_until`. Further messages are returned by the next call.

        :raises ExpectationError: fewer messages arrived.
        """
        if not await wait_until(self._clock, lambda: len(self.waiting) >= count, within):
            raise ExpectationError("\n".join(self._shortfall(count, within)))
        taken = self.waiting[:count]
        self._handed_out += count
        return taken

    async def expect_none(self, within: float | timedelta = WITHIN_SECONDS) -> None:
        """Let ``within`` seconds pass on the cluster's clock and check that no message arrives.

        :raises ExpectationError: a message arrives, or was already waiting.
        """
        if await wait_until(self._clock, lambda: self.waiting, within):
            lines = [f"expected no message from {self._sources_text()}{within_text(within)}, but these arrived:"]
            raise ExpectationError("\n".join([*lines, *describe_all(self.waiting)]))

    # --- the text of a failed expectation ---
    @abstractmethod
    def _sources_text(self) -> str:
        """Return what the consumer reads."""

    @abstractmethod
    def _places(self) -> Iterator[str]:
        """Yield a heading, and lines that say where messages are and what to do."""

    def _shortfall(self, count: int, within: float | timedelta) -> Iterator[str]:
        waiting = self.waiting
        yield (
            f"{quantity_text(count)} expected from {self._sources_text()}{within_text(within)}, "
            f"but {len(waiting) or 'none'} arrived:"
        )
        yield from describe_all(waiting)
        if self._handed_out:
            yield f"  (in addition to {self._handed_out} returned earlier)"
        heading, *lines = self._places()
        yield f"{quantity_text(count - len(waiting))} missing. {heading}"
        yield from lines


def quantity_text(count: int) -> str:
    """Return a number of messages in words."""
    return f"{count} message" if count == 1 else f"{count} messages"


def within_text(within: float | timedelta) -> str:
    """Return the time limit of an expectation as the end of a sentence."""
    return f" within {within if isinstance(within, timedelta) else f'{within:g} s'}"


def _describe(message: MessageExt) -> str:
    parts = [f"{message.topic} {message.broker_name}/{message.queue_id} at {message.queue_offset}"]
    if message.keys:
        parts.append(f"keys {' '.join(message.keys)}")
    if message.tags is not None:
        parts.append(f"tags {message.tags}")
    if message.reconsume_times:
        parts.append(f"attempt {message.reconsume_times + 1}")
    body = message.body
    text = repr(body[:_BODY_BYTES]) + ("…" if len(body) > _BODY_BYTES else "")
    return f"{', '.join(parts)}: {text}"


def describe_all(messages: Sequence[MessageExt]) -> Iterator[str]:
    """Yield a line for each message, at most :data:`LISTED` lines."""
    for number, message in enumerate(messages[:LISTED], 1):
        yield f"  {number}. {_describe(message)}"
    if len(messages) > LISTED:
        yield f"  … and {len(messages) - LISTED} more"
