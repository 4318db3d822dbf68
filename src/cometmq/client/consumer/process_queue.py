"""A queue's messages between pull and consumption, and its consumed offset (``ProcessQueue``).

Theory of operation. A pull returns a chunk, which is cut into requests. A request has the messages of one listener
call. Requests are *open* from the pull until :meth:`ProcessQueue.finish`; they may finish in any order. The consumed
offset is the offset of the first message of the first open request, or of the next pull if no request is open. So all
messages before this offset are consumed or stored again by the broker, and a reader that continues there loses no
message.

``dropped`` ends the queue for this member: no chunk is accepted and no call begins. ``running`` contains the requests
whose call or send back is in progress; a hand-over waits for them. ``release`` frees the memory of the messages that
are left; later calls of ``finish`` change nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.client.consumer.config import PushConfig
from cometmq.client.consumer.pulling import Budget, Chunk
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import MessageQueue

_NONE: Final[list[MessageExt]] = []
"""The empty list of messages of a finished request."""

SubmitRequests = Callable[["list[ConsumeRequest]"], None]


class ConsumeRequest(msgspec.Struct, eq=False):
    """The messages for one listener call."""

    process_queue: ProcessQueue
    messages: list[MessageExt]
    size_bytes: int
    done: bool = False


class ProcessQueue:
    """A queue of a push consumer, to which the queue's reader delivers messages."""

    def __init__(self, queue: MessageQueue, config: PushConfig, budget: Budget, submit: SubmitRequests) -> None:
        self.queue = queue
        self.task: asyncio.Task[None] | None = None
        self.dropped = False
        """True if the queue is being left, so that no listener call may start."""
        self.running: set[ConsumeRequest] = set()
        """Requests whose listener call is running or whose failed messages are being sent back."""
        self.uncommitted: list[ConsumeRequest] = []
        """For an orderly consumer without auto commit: requests that are consumed but not committed, in order."""
        self.pulled_count = 0
        """Number of messages pulled so far."""
        self._begun = False
        self._config = config
        self._budget = budget
        self.submit = submit
        self._open: deque[ConsumeRequest] = deque()
        self._next_offset = 0
        self._count = 0
        self._size = 0
        self._released = False
        self._changed = asyncio.Event()
        budget.join(self._changed)

    def begin(self, offset: int) -> None:
        """Start reading at ``offset``."""
        self._next_offset = offset
        self._begun = True

    @property
    def offset(self) -> int | None:
        """Return the consumed offset, or ``None`` before reading has started."""
        if self._open:
            return self._open[0].messages[0].queue_offset
        return self._next_offset if self._begun else None

    # --- a reader's sink ---

    async def room(self) -> None:
        """Wait until there is room for another pull (flow control)."""
        while self.is_full:
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_full(self) -> bool:
        """Return whether the queue has reached a limit, so that pulls must wait."""
        config = self._config
        return (
            self._count >= config.pull_threshold_for_queue
            or self._size >= min(config.pull_threshold_bytes_for_queue, self._budget.share_bytes)
            or self._next_offset - (self.offset or 0) >= config.pull_span_for_queue
        )

    def take(self, chunk: Chunk) -> None:
        """Submit the messages from a pull as requests."""
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
            self._size += share * len(messages)
            self._next_offset = chunk.next_offset
            self.submit(requests)
        else:
            self._next_offset = chunk.next_offset

    # --- consumption ---

    def finish(self, request: ConsumeRequest) -> None:
        """Finish a request, unless it has already been finished by sending back its messages."""
        self.running.discard(request)
        if self._released or request.done:
            self._changed.set()
            return
        request.done = True
        self._count -= len(request.messages)
        self._size -= request.size_bytes
        request.messages = _NONE
        opened = self._open
        while opened and opened[0].done:
            opened.popleft()
        self._changed.set()

    def shrink(self, request: ConsumeRequest, failed: list[MessageExt]) -> None:
        """Reduce a request to its ``failed`` messages, which must be consumed again."""
        self.running.discard(request)
        if self._released or request.done:
            return
        before = len(request.messages)
        remaining = request.size_bytes * len(failed) // before
        self._count -= before - len(failed)
        self._size -= request.size_bytes - remaining
        request.size_bytes = remaining
        request.messages = failed
        self._changed.set()

    def split(self, request: ConsumeRequest, rest: int) -> ConsumeRequest:
        """Split a request: move all messages except the last ``rest`` to a new request before it."""
        first = len(request.messages) - rest
        head = ConsumeRequest(self, request.messages[:first], request.size_bytes * first // len(request.messages))
        request.messages = request.messages[first:]
        request.size_bytes -= head.size_bytes
        if not self._released:
            self._open.insert(self._open.index(request), head)
        return head

    def end_request(self, request: ConsumeRequest) -> None:
        """Remove a request from ``running``, whether or not it was consumed."""
        self.running.discard(request)
        self._changed.set()

    async def idle(self) -> None:
        """Wait until no requests are running."""
        while self.running:
            self._changed.clear()
            await self._changed.wait()

    async def stop_reading(self) -> None:
        """Drop the queue and end its reader."""
        self.dropped = True
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def release(self) -> None:
        """Free the memory of unconsumed messages."""
        self._released = True
        self._budget.leave(self._changed)
        self._size = 0
        self._open.clear()

    @property
    def is_released(self) -> bool:
        """Return whether the queue was left, so that finishing a request has no effect."""
        return self._released

    @property
    def is_read(self) -> bool:
        """Return whether the reader is running; a failed reader is replaced at the next rebalance."""
        return self.task is not None and not self.task.done()

    @property
    def cached_count(self) -> int:
        """Return the number of messages that were pulled but not consumed."""
        return self._count

    @property
    def cached_bytes(self) -> int:
        """Return the total size in bytes of the messages that were pulled but not consumed."""
        return self._size

    @property
    def cached_span(self) -> tuple[int, int]:
        """Return the offsets of the first and last unconsumed message, or zeros if all messages are consumed."""
        opened = self._open
        if not opened or opened[-1].done:
            return (0, 0) if not opened else (opened[0].messages[0].queue_offset, self._next_offset - 1)
        return opened[0].messages[0].queue_offset, opened[-1].messages[-1].queue_offset
