"""Keeps received messages invisible while the application handles them.

The messages of one pop are renewed together when half of their invisible time has passed. A renewal that fails is
repeated until the message is visible again: then it is *lost*, and the application is told.

A renewal replaces a message's receipt, and brokers ignore the old one. So an acknowledgement first waits for a renewal
that is in progress (:meth:`Renewals.settle`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from cometmq.client.background import Spawn
from cometmq.client.errors import ClientError, RemotingError
from cometmq.client.serialization import place_of
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.simple.requests import SimpleRequests
from cometmq.clock import TimerHandle

log = logging.getLogger(__name__)

_SOON_S: Final = 0.1
"""Minimum number of seconds before a message is looked at again."""


class _Row:
    """Messages that are renewed together."""

    __slots__ = ("invisible_ms", "messages", "timer", "until")

    def __init__(self, messages: Iterable[PoppedMessage], invisible_ms: int, until: float) -> None:
        self.messages = dict.fromkeys(messages)
        self.invisible_ms = invisible_ms
        self.until = until
        """Monotonic time in seconds up to which the messages stay invisible."""
        self.timer: TimerHandle | None = None


class Renewals:
    """The messages that are renewed.

    :param on_lost: called on the event loop with each message that is visible again though it is neither acknowledged
        nor given back.
    """

    def __init__(
        self, requests: SimpleRequests, spawn: Spawn, on_lost: Callable[[PoppedMessage], object] | None
    ) -> None:
        self._requests = requests
        self._clock = requests.instance.clock
        self._spawn = spawn
        self._on_lost = on_lost
        self._rows: dict[PoppedMessage, _Row] = {}
        self._changing: dict[PoppedMessage, asyncio.Task[None]] = {}
        """The renewals that are in progress."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, messages: Sequence[PoppedMessage], invisible_ms: int) -> None:
        """Keep messages invisible from now on; a part of their time may have passed."""
        until = self._clock.monotonic() + self._requests.config.renew_up_to_s
        self._wait(_Row(messages, invisible_ms, until), self._left_s(messages) / 2)

    def discard(self, message: PoppedMessage) -> None:
        """Stop renewing a message."""
        row = self._rows.pop(message, None)
        if row is not None:
            row.messages.pop(message, None)
            if not row.messages and row.timer is not None:
                row.timer.cancel()

    def is_settled(self, messages: Iterable[PoppedMessage]) -> bool:
        """Return whether no renewal of these messages is in progress."""
        return not self._changing or self._changing.keys().isdisjoint(messages)

    async def settle(self, messages: Iterable[PoppedMessage]) -> None:
        """Wait until no renewal of these messages is in progress; call :meth:`discard` first."""
        if tasks := {task for message in messages if (task := self._changing.get(message)) is not None}:
            await asyncio.wait(tasks)

    def stop(self) -> None:
        """Stop renewing all messages."""
        for message in list(self._rows):
            self.discard(message)

    def _left_s(self, messages: Iterable[PoppedMessage]) -> float:
        """Return the seconds for which all messages are still invisible."""
        return min(message.invisible_until_s for message in messages) - self._clock.monotonic()

    def _wait(self, row: _Row, seconds: float) -> None:
        if row.messages:
            self._rows.update(dict.fromkeys(row.messages, row))
            row.timer = self._clock.call_later(max(seconds, _SOON_S), self._due, row)

    def _due(self, row: _Row) -> None:
        """Renew the messages of a row, unless they are lost or need no renewal."""
        row.timer = None
        now = self._clock.monotonic()
        for message in [message for message in row.messages if message.invisible_until_s <= now]:
            self.discard(message)
            self._tell(message)
        if row.messages:
            left_s = self._left_s(row.messages)
            if now + left_s < row.until:
                task = self._spawn(self._renew(row))
                self._changing.update(dict.fromkeys(row.messages, task))
            else:
                self._wait(row, left_s)

    async def _renew(self, row: _Row) -> None:
        messages = list(row.messages)
        try:
            changes = [self._requests.change(message, row.invisible_ms) for message in messages]
            outcomes = await asyncio.gather(*changes, return_exceptions=True)
        finally:
            for message in messages:
                self._changing.pop(message, None)
        failed = []
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, ClientError | RemotingError) and message in row.messages:
                log.info("cannot renew %s yet: %s", place_of(message), outcome)
                del row.messages[message]
                failed.append(message)
        self._wait(row, row.invisible_ms / 2000)
        if failed:
            self._wait(_Row(failed, row.invisible_ms, row.until), self._left_s(failed) / 2)

    def _tell(self, message: PoppedMessage) -> None:
        log.warning("the group receives %s again, because its time is over", place_of(message))
        if self._on_lost is not None:
            try:
                self._on_lost(message)
            except Exception:
                log.exception("on_lost failed for %s", place_of(message))
