"""Passes messages of lite topics to a listener: those of one lite topic in their order, several lite topics at a time.

When the listener fails, the message and those behind it in its lite topic are received again after a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from cometmq.client.consumer.listener import Listener, Verdict, checked_verdict, failed_messages, raised
from cometmq.client.errors import ClientError, RemotingError
from cometmq.client.lite.requests import LiteMessage, LiteRequests
from cometmq.client.serialization import place_of
from cometmq.client.user_code import in_thread, is_async
from cometmq.loop import TaskSet
from cometmq.message.message import MessageExt

log = logging.getLogger(__name__)


class LiteListening:
    """The calls of a consumer's listener."""

    def __init__(self, listener: Listener, requests: LiteRequests) -> None:
        self._listener = listener
        self._requests = requests
        concurrency = requests.config.consume_concurrency
        self._room = asyncio.Semaphore(concurrency)
        self._tasks = TaskSet()
        self._threads = (
            None if is_async(listener) else ThreadPoolExecutor(concurrency, thread_name_prefix="cometmq-consume")
        )

    async def pass_on(self, messages: Sequence[LiteMessage]) -> None:
        """Begin to pass on messages; wait only while too many lite topics are being consumed."""
        by_topic: dict[str | None, list[LiteMessage]] = {}
        for message in messages:
            by_topic.setdefault(message.lite_topic, []).append(message)
        for row in by_topic.values():
            await self._room.acquire()
            self._tasks.start(self._consume(row), "consume messages of a lite topic")

    async def close(self) -> None:
        """Wait until the running calls have ended."""
        await self._tasks.join()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    async def _consume(self, row: list[LiteMessage]) -> None:
        renewing = asyncio.get_running_loop().create_task(self._renew(row))
        try:
            while row:
                verdict = await self._call(row[0])
                if failed_messages([row[0]], verdict):
                    await self._put_off(row)
                    return
                await self._quietly(self._requests.ack(row[0]), row[0], "acknowledge")
                del row[0]
        finally:
            renewing.cancel()
            self._room.release()

    async def _call(self, message: LiteMessage) -> Verdict:
        messages: list[MessageExt] = [message]
        try:
            if self._threads is None:
                verdict = await cast("Callable[[Sequence[MessageExt]], Awaitable[Verdict]]", self._listener)(messages)
            else:
                verdict = await in_thread(
                    self._threads, cast("Callable[[Sequence[MessageExt]], Verdict]", self._listener), messages
                )
        except Exception as error:
            return raised(messages, error)
        return checked_verdict(messages, verdict)

    async def _put_off(self, row: Sequence[LiteMessage]) -> None:
        """Have a failed message and those behind it delivered again."""
        pause = self._requests.config.retry_s
        for message in row:
            await self._quietly(self._requests.hide(message, pause), message, "put off")

    async def _renew(self, row: Sequence[LiteMessage]) -> None:
        """Keep messages invisible to other members while the listener runs."""
        invisible_s = self._requests.config.invisible_s
        while True:
            await self._requests.instance.clock.sleep(invisible_s / 2)
            for message in list(row):
                await self._quietly(self._requests.hide(message, invisible_s), message, "keep")

    @staticmethod
    async def _quietly(work: Awaitable[None], message: LiteMessage, what: str) -> None:
        try:
            await work
        except (ClientError, RemotingError) as error:
            log.warning("cannot %s %s, which is received again: %s", what, place_of(message), error)
