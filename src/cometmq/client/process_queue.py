"""The messages of one queue that are being consumed, and how far the queue is done (``ProcessQueue``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from cometmq.client.consumer_config import PushConfig
from cometmq.client.reader import Budget, Chunk
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue

_NONE: Final[list[MessageExt]] = []
"""What a request that is done still holds."""

SubmitRequests = Callable[["list[ConsumeRequest]"], None]


class ConsumeRequest:
    """Messages that the listener gets in one call."""

    __slots__ = ("done", "messages", "process_queue", "size_bytes")

    def __init__(self, process_queue: ProcessQueue, messages: list[MessageExt], size_bytes: int) -> None:
        self.process_queue = process_queue
        self.messages = messages
        self.size_bytes = size_bytes
        self.done = False


class ProcessQueue:
    """One queue of a push consumer.

    Everything before :attr:`offset` is done: consumed, or handed back to the broker. Requests may end
    in any order; the offset follows the first that is still open.
    """

    def __init__(self, queue: MessageQueue, config: PushConfig, budget: Budget, submit: SubmitRequests) -> None:
        self.queue = queue
        self.task: asyncio.Task[None] | None = None
        self.dropped = False
        """Its queue is read by somebody else now: what has not begun must not be consumed any more."""
        self.running: set[ConsumeRequest] = set()
        """Requests whose listener call runs now, or whose failures are being handed back."""
        self.uncommitted: list[ConsumeRequest] = []
        """Requests that an orderly listener without auto commit has consumed, in order."""
        self.pulled_count = 0
        """Messages read so far."""
        self._begun = False
        self._config = config
        self._budget = budget
        self._submit = submit
        self._open: deque[ConsumeRequest] = deque()
        self._next_offset = 0
        self._count = 0
        self._size = 0
        self._released = False
        self._changed = asyncio.Event()

    def begin(self, offset: int) -> None:
        """Reading begins at ``offset``."""
        self._next_offset = offset
        self._begun = True

    @property
    def offset(self) -> int | None:
        """Everything before it is done; ``None`` before reading has begun."""
        if self._open:
            return self._open[0].messages[0].queue_offset
        return self._next_offset if self._begun else None

    # --- a reader's sink ---

    async def room(self) -> None:
        """Wait until another pull is worth while (flow control)."""
        while self.is_full:
            self._changed.clear()
            await self._changed.wait()
        await self._budget.room()

    @property
    def is_full(self) -> bool:
        """Whether nothing is read before something of it is done."""
        config = self._config
        return (
            self._count >= config.pull_threshold_for_queue
            or self._size >= config.pull_threshold_bytes_for_queue
            or self._next_offset - (self.offset or 0) >= config.pull_span_for_queue
        )

    def take(self, chunk: Chunk) -> None:
        """Make requests of what a pull brought."""
        if self.dropped:
            return
        messages = chunk.messages
        if messages:
            size = self._config.consume_batch_size
            share = chunk.size_bytes // len(messages)
            if size == 1:
                requests = [ConsumeRequest(self, [message], share) for message in messages]
            else:
                parts = [messages[at : at + size] for at in range(0, len(messages), size)]
                requests = [ConsumeRequest(self, part, share * len(part)) for part in parts]
            self._open.extend(requests)
            self._count += len(messages)
            self.pulled_count += len(messages)
            taken = share * len(messages)
            self._size += taken
            self._budget.take(taken)
            self._next_offset = chunk.next_offset
            self._submit(requests)
        else:
            self._next_offset = chunk.next_offset

    # --- consumption ---

    def finish(self, request: ConsumeRequest) -> None:
        """A request is done for good; harmless when it was before, since its messages went back to the broker."""
        self.running.discard(request)
        if self._released or request.done:
            self._changed.set()
            return
        request.done = True
        self._count -= len(request.messages)
        self._size -= request.size_bytes
        self._budget.give_back(request.size_bytes)
        request.messages = _NONE
        opened = self._open
        while opened and opened[0].done:
            opened.popleft()
        self._changed.set()

    def shrink(self, request: ConsumeRequest, failed: list[MessageExt]) -> None:
        """Of a request only ``failed`` is still open, and waits to be consumed again."""
        self.running.discard(request)
        if self._released or request.done:
            return
        before = len(request.messages)
        kept = request.size_bytes * len(failed) // before
        self._count -= before - len(failed)
        self._size -= request.size_bytes - kept
        self._budget.give_back(request.size_bytes - kept)
        request.size_bytes = kept
        request.messages = failed
        self._changed.set()

    def split(self, request: ConsumeRequest, rest: int) -> ConsumeRequest:
        """Make all but the last ``rest`` messages of a request a request of their own, which stands before it."""
        first = len(request.messages) - rest
        head = ConsumeRequest(self, request.messages[:first], request.size_bytes * first // len(request.messages))
        request.messages = request.messages[first:]
        request.size_bytes -= head.size_bytes
        if not self._released:
            self._open.insert(self._open.index(request), head)
        return head

    def skip(self, request: ConsumeRequest) -> None:
        """No call of the listener works on a request any more, which is not done."""
        self.running.discard(request)
        self._changed.set()

    async def idle(self) -> None:
        """Wait until no listener call runs."""
        while self.running:
            self._changed.clear()
            await self._changed.wait()

    async def stop_reading(self) -> None:
        """Pull no more, and let nothing more begin."""
        self.dropped = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def release(self) -> None:
        """Give back the memory of what was not consumed."""
        self._released = True
        self._budget.give_back(self._size)
        self._size = 0
        self._open.clear()

    @property
    def is_read(self) -> bool:
        """Whether its reader runs: one that failed is replaced at the next rebalance."""
        return self.task is not None and not self.task.done()

    @property
    def cached_count(self) -> int:
        """Messages read and not done."""
        return self._count

    @property
    def cached_bytes(self) -> int:
        """Bytes read and not done."""
        return self._size

    @property
    def cached_span(self) -> tuple[int, int]:
        """The offsets of the first and the last message read and not done; zeros when there is none."""
        opened = self._open
        if not opened or opened[-1].done:
            return (0, 0) if not opened else (opened[0].messages[0].queue_offset, self._next_offset - 1)
        return opened[0].messages[0].queue_offset, opened[-1].messages[-1].queue_offset
