"""Runs long work in slices over many rounds of the event loop, so that other requests are answered in between.

All sliced work on a loop shares a *lane*. New work runs its first slice immediately if the slices of this round have
taken less than :data:`~cometmq.broker.limits.SLICES_SECONDS`; otherwise it waits for a later round. In each round new
work runs first, for half of that time. Then up to :data:`~cometmq.broker.limits.SLICED_WORKS` other works run one slice
each, and the next round begins with the remaining ones. Thus a thousand concurrent requests delay other clients no
longer than one does.

The time is the thread's processor time, and a share of the time in which it waits. Where other processes need the
processor, a few milliseconds of the clock would end most slices before they have done anything, and thousands of
clients that come back after a restart would wait for each other. Waits count because a slice may read from a disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from cometmq.broker.limits import QUEUES_PER_SLICE, SLICED_WORKS, SLICES_SECONDS, TABLE_ROWS_PER_SLICE
from cometmq.clock import SYSTEM_CLOCK
from cometmq.loop import call_now
from cometmq.remoting.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig, encode_body, encode_rows
from cometmq.remoting.processors import Request, Response, failed
from cometmq.remoting.server_connection import ServerConnection

_log = logging.getLogger(__name__)

T = TypeVar("T")

_ENDED: Final = object()
_SHARE_OF_WAITS: Final = 0.1

Steps = Generator[None, None, Response]
"""Work that yields after each slice and finally returns the response."""


class _Stopwatch:
    """The time that a thread has used."""

    __slots__ = ("_began", "_worked")

    def __init__(self) -> None:
        self._worked, self._began = time.thread_time(), SYSTEM_CLOCK.monotonic()

    def seconds(self) -> float:
        """Return the processor time since the start, or a share of the time that has passed if that is more."""
        return max(time.thread_time() - self._worked, (SYSTEM_CLOCK.monotonic() - self._began) * _SHARE_OF_WAITS)


class _SliceQueue:
    """The sliced work on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._first: deque[Callable[[], bool]] = deque()
        """Work whose first slice is pending and short."""
        self._long: deque[Callable[[], bool]] = deque()
        self._spent_s = 0.0
        """Time in seconds that new work has used in this round."""
        self._has_round = False

    def begin(self, step: Callable[[], bool]) -> None:
        """Call ``step`` now or soon, then once a round while it returns True; ``step`` must not raise."""
        if self._first or self._spent_s >= SLICES_SECONDS:
            self._first.append(step)
            self._next_round()
            return
        if not self._spent_s:
            self._loop.call_soon(self._begin_round)
        used = _Stopwatch()
        if step():
            self.add(step)
        self._spent_s += used.seconds()

    def add(self, step: Callable[[], bool]) -> None:
        """Call ``step`` like :meth:`begin`, for work with a long first slice."""
        self._long.append(step)
        self._next_round()

    def _begin_round(self) -> None:
        self._spent_s = 0.0

    def _next_round(self) -> None:
        if not self._has_round:
            self._has_round = True
            self._loop.call_soon(self._loop.call_soon, self._turn)  # requests that have arrived are handled in between

    def _turn(self) -> None:
        used = _Stopwatch()
        while self._first:
            step = self._first.popleft()
            if step():
                self._long.append(step)
            if used.seconds() >= SLICES_SECONDS / 2:
                break
        used = _Stopwatch()
        for _ in range(min(len(self._long), SLICED_WORKS)):
            step = self._long.popleft()
            if step():
                self._long.insert(SLICED_WORKS - 1, step)
            if used.seconds() >= SLICES_SECONDS / 2:
                break
        self._has_round = False
        if self._first or self._long:
            self._next_round()


_lanes: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _SliceQueue]] = WeakKeyDictionary()


def _slice_queue() -> _SliceQueue:
    loop = asyncio.get_running_loop()
    lane = _lanes.get(loop)
    if lane is None:
        lane = _lanes[loop] = _SliceQueue(loop)
    return lane


def run_in_slices(
    connection: ServerConnection,
    request: Request[Any],
    steps: Steps,
    *,
    at_once: bool = True,
    before_answer: Callable[[Callable[[], None]], None] = call_now,
) -> Response | None:
    """Run the first slice; return the response if the work is complete, otherwise return ``None`` and run more slices
    later.

    The connection is not read until the response has been sent, so each client has only one sliced request in progress.
    Closing the connection cancels the work.

    :param at_once: False if the first slice is already long.
    :param before_answer: receives the function that sends the response, and calls it now or later.
    """
    answer: Response | None = None
    is_now = True

    def step() -> bool:
        nonlocal answer
        if connection.closed:
            steps.close()
            return False
        try:
            next(steps)
        except StopIteration as done:
            answer = done.value
        except Exception as error:
            answer = failed(connection.remote_address, request, error)
        else:
            return True
        if not is_now:
            before_answer(respond)
        return False

    def respond() -> None:
        assert answer is not None
        connection.respond(request, answer)
        if not is_now:
            connection.work_is_done()

    lane = _slice_queue()
    if at_once:
        lane.begin(step)
        if answer is not None:
            before_answer(respond)
            return None
    else:
        lane.add(step)
    is_now = False
    connection.wait_for_work()
    return None


def do_in_slices(steps: Iterator[None]) -> None:
    """Run background work in slices; run the first slice now if this round has time left."""

    def step() -> bool:
        try:
            return next(steps, _ENDED) is not _ENDED
        except Exception:
            _log.exception("background work failed")
            return False

    _slice_queue().begin(step)


class Slice:
    """Counts the items that a slice handles: ``QUEUES_PER_SLICE`` queues, or others that cost as much."""

    __slots__ = ("_left", "_size")

    def __init__(self, size: int | None = None) -> None:
        self._size = self._left = size or QUEUES_PER_SLICE

    def ends_after(self, items: int = 1) -> bool:
        """Count handled items; return whether they end the slice, so that the next one begins."""
        self._left -= items
        if self._left > 0:
            return False
        self._left = self._size
        return True


def slices(items: Iterable[T]) -> Iterator[list[T]]:
    """Split items into lists of at most ``QUEUES_PER_SLICE`` items, the number of queues that one slice reads."""
    return batches(items, QUEUES_PER_SLICE)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split items into lists of ``size`` items."""
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def table_in_slices(
    version: DataVersion, field: str, table: Mapping[str, TopicConfig | SubscriptionGroupConfig]
) -> Steps:
    """Build, in slices, the response with all topics or groups. A row that changes before the last slice may be newer
    than the version.
    """
    parts: list[bytes] = []
    for names in batches(list(table), TABLE_ROWS_PER_SLICE):
        if parts:
            yield
        parts.append(encode_rows({name: table[name] for name in names if name in table}))
    rows = b",".join(filter(None, parts))
    return Response(body=b'{"dataVersion":%s,"%s":{%s}}' % (encode_body(version), field.encode(), rows))


def list_in_slices(items: Iterable[Any]) -> Generator[None, None, bytes]:
    """Encode a list in slices, and return its JSON without the outer brackets."""
    parts: list[bytes] = []
    for some in slices(items):
        if parts:
            yield
        parts.append(members(some))
    return b",".join(parts)


def names_in_slices(names: Iterable[str]) -> Generator[None, None, bytes]:
    """Sort and encode names in slices, and return their JSON without the outer brackets."""
    parts: list[list[str]] = []
    for some in batches(names, TABLE_ROWS_PER_SLICE):
        if parts:
            yield
        parts.append(sorted(some))
    return (yield from list_in_slices(merge(*parts)))


def members(body: dict[Any, Any] | list[Any]) -> bytes:
    """Return the JSON of a map or list without the outer brackets."""
    return encode_body(body)[1:-1]
