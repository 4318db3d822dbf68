"""Acknowledgements of a simple consumer: those of one moment for one broker are one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from cometmq.client.background import Spawn
from cometmq.client.errors import ClientError, RemotingError
from cometmq.client.simple.message import PoppedMessage
from cometmq.client.simple.requests import SimpleRequests, passes

_MAX_ACKS: Final = 1024
"""Maximum number of messages in one request; brokers take 4,096 queues of pops."""

Done = Callable[[BaseException | None, Sequence[PoppedMessage]], object]
"""Called once, with the first error and the messages that are not acknowledged, or with ``None`` and no messages."""


def _ignore(_error: BaseException | None, _messages: Sequence[PoppedMessage]) -> None:
    """Leave messages whose acknowledgement has failed to be received again."""


class _Call:
    """One call, whose messages may belong to several requests."""

    __slots__ = ("_done", "_error", "_failed", "_left")

    def __init__(self, left: int, done: Done) -> None:
        self._left = left
        self._done = done
        self._error: BaseException | None = None
        self._failed: list[PoppedMessage] = []

    def ended(self, message: PoppedMessage, error: BaseException | None) -> None:
        self._left -= 1
        if error is not None:
            self._error = self._error or error
            self._failed.append(message)
        if not self._left:
            self._done(self._error, self._failed)


class Acks:
    """Acknowledges messages.

    :param spawn: runs requests in the background.
    """

    def __init__(self, requests: SimpleRequests, spawn: Spawn) -> None:
        self._requests = requests
        self._spawn = spawn
        self._waiting: dict[str, list[tuple[PoppedMessage, _Call]]] = {}
        """The messages of this round of the event loop, by broker."""
        self._running: set[asyncio.Task[None]] = set()

    def add(self, messages: Sequence[PoppedMessage], done: Done = _ignore) -> None:
        """Acknowledge messages in this round of the event loop.

        :raises ClientStateError: another process received a message; none is acknowledged.
        """
        brokers = [message.queue_handle.broker_name for message in messages]
        if not brokers:
            done(None, ())
            return
        call = _Call(len(brokers), done)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._flush)
        for broker, message in zip(brokers, messages, strict=True):
            self._waiting.setdefault(broker, []).append((message, call))

    def add_after(self, settled: Awaitable[None], messages: Sequence[PoppedMessage], done: Done) -> None:
        """Acknowledge messages once their renewals have ended."""
        self._start(self._add_after(settled, messages, done))

    async def _add_after(self, settled: Awaitable[None], messages: Sequence[PoppedMessage], done: Done) -> None:
        try:
            await settled
            self.add(messages, done)
        except ClientError as error:
            done(error, messages)
        except asyncio.CancelledError as cancelled:
            done(cancelled, messages)
            raise

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._spawn(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for broker, acks in waiting.items():
            for at in range(0, len(acks), _MAX_ACKS):
                self._start(self._send(broker, acks[at : at + _MAX_ACKS]))

    async def _send(self, broker: str, acks: Sequence[tuple[PoppedMessage, _Call]]) -> None:
        try:
            error = await self._outcome(broker, [message for message, _ in acks])
            if error is None or passes(error) or len(acks) == 1:
                for message, call in acks:
                    call.ended(message, error)
                return
            for message, call in acks:  # only some of them are refused
                call.ended(message, await self._outcome(broker, [message]))
        except asyncio.CancelledError as cancelled:
            for message, call in acks:
                call.ended(message, cancelled)
            raise

    async def _outcome(self, broker: str, messages: Sequence[PoppedMessage]) -> ClientError | RemotingError | None:
        """Acknowledge messages; return the error if they are refused, or if the broker does not answer for long."""
        try:
            await self._requests.until_answered(partial(self._requests.acknowledge, broker, messages))
        except (ClientError, RemotingError) as error:
            return error
        return None

    async def join(self) -> None:
        """Wait until all acknowledgements have ended."""
        while self._waiting or self._running:
            if self._running:
                await asyncio.wait(set(self._running))
            await asyncio.sleep(0)
