"""Long polling: pulls that found nothing wait here for a message (``PullRequestHoldService``).

Pulls of one queue that want the same messages wait as one group. When messages arrive, the groups that want
everything, and those of the tags codes that came, are answered at once; other filters read the messages, once for
each group. In addition, every five seconds each pull whose queue has grown is run again, and every second those whose
time is up. The answer is that of the pull run again, so that the client always gets a full answer. This work takes
a slice of time in a turn of the loop and goes on in the next ones.

A connection that is behind with reading gets messages when it has caught up: its pulls are left for the next sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from cometmq.broker.limits import (
    HELD_CODE_CHARS,
    HELD_SLICE_SECONDS,
    HELD_SQL_CHARS,
    HELD_SQL_FACTOR,
    MAX_HELD_PULL_CHARS,
    MAX_HELD_PULLS,
    MAX_HELD_PULLS_OF_CONNECTION,
)
from cometmq.broker.periodic import Alarm
from cometmq.broker.pull.filters import MessageFilter, PredicateKey
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Request, Response
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue, GetMessageStatus, MessageStore
from cometmq.store.queue.consume_queue import UNIT

_log = logging.getLogger(__name__)

_UNITS: Final = 1_024
"""Units whose tags are looked at in one step: about 0.2 ms."""

_TIMEOUT_SWEEP_S: Final = 1.0
_GROWTH_SWEEPS: Final = 5
"""Every fifth sweep is for queues that have grown too: every 5 s, as in Apache."""

_Work = Iterator[None]
"""Work in steps, which can stop after each."""
_Key = tuple[frozenset[int] | None, PredicateKey | None, int]


class HeldPull(msgspec.Struct, eq=False):
    """A waiting pull."""

    connection: ServerConnection
    request: Request[Any]
    wanted: MessageFilter
    is_earlier: bool = False
    """True when its topic was deleted since."""
    deadline: float = 0.0
    """Monotonic seconds."""

    @property
    def chars(self) -> int:
        """Characters of its texts, which stay in memory while it waits."""
        request = self.request
        header = request.header
        texts = (header.topic, header.consumer_group, header.subscription, header.expression_type, request.language)
        return sum(len(text) for text in texts if isinstance(text, str))


class HeldGroup(msgspec.Struct, eq=False):
    """Pulls of one queue that want the same messages."""

    key: _Key
    wanted: MessageFilter
    scanned_to: int
    """Messages before this queue offset do not match; not updated for tags, which the queue looks up."""
    chars: int
    """Size of the filter, in characters."""
    pulls: dict[HeldPull, None]


class HeldQueue:
    """The groups that wait at one queue.

    Pulls that wait at the queue's end share a group. Those that wait elsewhere, at a gap, have one for each offset.
    """

    __slots__ = ("_by_code", "_everything", "_tags_to", "groups", "has_more", "is_looking", "key", "others")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.groups: dict[_Key, HeldGroup] = {}
        self.others: dict[HeldGroup, None] = {}
        """Groups whose filters read the messages."""
        self.is_looking = False
        self.has_more = False
        self._everything: HeldGroup | None = None
        self._by_code: dict[int, dict[HeldGroup, None]] = {}
        self._tags_to = 0
        """Messages before this offset have been looked up by their tags."""

    @property
    def alone(self) -> tuple[HeldGroup, HeldPull] | None:
        """The only pull that waits here, if it wants everything."""
        group = self._everything
        if group is None or len(self.groups) > 1 or len(group.pulls) > 1:
            return None
        return group, next(iter(group.pulls))

    @property
    def quick(self) -> bool:
        """True when any group is found without reading messages."""
        return self._everything is not None or bool(self._by_code)

    def group(self, pull: HeldPull, end: int) -> HeldGroup:
        """The group of a pull; a new one is not yet entered. ``end`` is the queue's."""
        wanted = pull.wanted
        header: PullMessageRequestHeader = pull.request.header
        offset = header.queue_offset
        if wanted.wants_all:
            key: _Key = (None, None, -1)
        else:
            key = (wanted.codes, wanted.key, offset if offset < end else -1)
        group = self.groups.get(key)
        if group is None:
            chars = HELD_CODE_CHARS * len(wanted.codes or ())
            if wanted.predicate is not None:
                chars += HELD_SQL_CHARS + HELD_SQL_FACTOR * wanted.chars
            group = HeldGroup(key, wanted, min(offset, end), chars, {})
        return group

    def add(self, group: HeldGroup) -> None:
        """Enter a group."""
        self.groups[group.key] = group
        codes, predicate, offset = group.key
        if predicate is not None or offset >= 0:
            self.others[group] = None
        elif codes is None:
            self._everything = group
        else:
            if not self._by_code:
                self._tags_to = group.scanned_to
            for code in codes:
                self._by_code.setdefault(code, {})[group] = None

    def remove(self, group: HeldGroup) -> None:
        """Take out a group without pulls."""
        del self.groups[group.key]
        codes, predicate, offset = group.key
        if predicate is not None or offset >= 0:
            del self.others[group]
        elif codes is None:
            self._everything = None
        else:
            for code in codes:
                groups = self._by_code[code]
                del groups[group]
                if not groups:
                    del self._by_code[code]

    def wanted_by_tags(self, queue: ConsumeQueue) -> tuple[list[HeldGroup], bool]:
        """The groups that want everything or a tag of some messages not looked up yet; True when more are left."""
        groups = [] if self._everything is None else [self._everything]
        end = queue.max_offset()
        if not self._by_code:
            self._tags_to = end
            return groups, False
        if self._tags_to > end:  # the topic was deleted and made again
            self._tags_to = queue.min_offset()
        raw = queue.units(self._tags_to, _UNITS)
        if not raw:  # a gap, which the sweeps pass over
            self._tags_to = end
            return groups, False
        self._tags_to += len(raw) // UNIT.size
        codes = {unit[2] for unit in UNIT.iter_unpack(raw)} & self._by_code.keys()
        if len(codes) == 1:
            groups += self._by_code[codes.pop()]
        elif codes:
            groups += dict.fromkeys(group for code in codes for group in self._by_code[code])
        return groups, self._tags_to < end


class _Held(msgspec.Struct):
    """The waiting pulls of a connection."""

    count: int = 0
    chars: int = 0


class PullRequestHoldService:
    """The pulls that wait, by queue.

    ``answer`` runs a held pull again and must be set before the first is held.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._clock = store.clock
        self._queues: dict[tuple[str, int], HeldQueue] = {}
        self._held_of: dict[ServerConnection, _Held] = {}
        self._count = 0
        self._chars = 0
        self._next_sweep = Alarm(self._sweep, clock=store.clock)
        self._sweeps = 0
        self._is_sweeping = False
        self._sweep_is_due = False
        self._looks_for_growth = False
        """True when the next sweep is for queues that have grown, too."""
        self._stopped = False
        self._left: deque[_Work] = deque()
        """Work that did not fit into its turn; while there is any, a later turn is scheduled."""
        self.answer: Callable[[HeldPull], Response] | None = None

    def __len__(self) -> int:
        return self._count

    def start(self) -> None:
        """Begin the sweeps."""
        self._next_sweep.after(_TIMEOUT_SWEEP_S)

    def stop(self) -> None:
        """End the sweeps and answer all pulls; from now on none is held."""
        self._stopped = True
        self._next_sweep.close()
        self._left.clear()
        for _ in self._answer_all(lambda _: True):
            pass

    def hold(self, pull: HeldPull, wait_ms: int) -> bool:
        """Let a pull wait up to ``wait_ms``; ``False`` when it cannot, so that it is answered at once."""
        connection = pull.connection
        held = self._held_of.get(connection)
        if self._stopped or self._count >= MAX_HELD_PULLS or wait_ms <= 0:
            return False
        if held is not None and held.count >= MAX_HELD_PULLS_OF_CONNECTION:
            return False
        header: PullMessageRequestHeader = pull.request.header
        end = self._store.queue(header.topic, header.queue_id).max_offset()
        key = (header.topic, header.queue_id)
        waiting = self._queues.get(key)
        if waiting is None:
            waiting = HeldQueue(key)
        group = waiting.group(pull, end)
        chars = pull.chars
        if self._chars + chars + (0 if group.pulls else group.chars) > MAX_HELD_PULL_CHARS:
            return False
        if held is None:
            held = self._held_of[connection] = _Held()
            connection.on_close.append(self._connection_closed)
        held.count += 1
        held.chars += chars
        self._count += 1
        self._chars += chars
        if not group.pulls:
            self._chars += group.chars
            waiting.add(group)
            self._queues[key] = waiting
        pull.wanted = group.wanted
        group.pulls[pull] = None
        pull.deadline = self._clock.monotonic() + wait_ms / 1000
        return True

    def arrived(self, queues: Iterable[ConsumeQueue]) -> None:
        """Messages became visible in these queues: wake the pulls that may want them."""
        if not self._count:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        for queue in queues:
            waiting = self._queues.get((queue.topic, queue.queue_id))
            if waiting is None:
                continue
            alone = waiting.alone
            if alone is not None:  # most often: no need for slices
                group, pull = alone
                header: PullMessageRequestHeader = pull.request.header
                if header.queue_offset != queue.committed or pull.is_earlier:
                    try:
                        self._try(waiting, group, pull)
                    except Exception:  # as below
                        _log.exception("a waiting pull of %s queue %d could not be woken", *waiting.key)
                continue
            waiting.has_more = True
            if not waiting.is_looking:
                waiting.is_looking = True
                self._run(self._look(waiting, queue), until)
            elif waiting.quick:  # other filters take long: pulls found by tags do not wait for them
                self._run(self._look_by_tags(waiting, queue), until)

    def topic_is_gone(self, topic: str) -> None:
        """The pulls of a deleted topic have offsets that mean nothing when it is made anew."""
        for waiting in [waiting for key, waiting in self._queues.items() if key[0] == topic]:
            for group in waiting.groups.values():
                for pull in group.pulls:
                    pull.is_earlier = True

    # --- work in slices ---------------------------------------------------------------------------
    def _run(self, work: _Work, until: float) -> bool:
        """Work until the time is up; return True when work is left, which goes on in a later turn."""
        try:
            for _ in work:
                if self._clock.monotonic() >= until:
                    if not self._left:
                        asyncio.get_running_loop().call_soon(self._go_on)
                    self._left.append(work)
                    return True
        except Exception:  # the messages are stored: their producers must be answered in any case
            _log.exception("waiting pulls could not be woken; they are looked at again within 5 s")
        return False

    def _go_on(self) -> None:
        if self._stopped:
            return
        until = self._clock.monotonic() + HELD_SLICE_SECONDS
        left, self._left = self._left, deque()
        while left:
            if self._run(left.popleft(), until):
                break
        left.extend(self._left)
        self._left = left

    def _look(self, waiting: HeldQueue, queue: ConsumeQueue) -> _Work:
        """Wake the pulls that want the new messages, and look again when more have arrived meanwhile."""
        try:
            while waiting.has_more:
                waiting.has_more = False
                yield from self._look_by_tags(waiting, queue)
                for group in list(waiting.others):
                    if group.pulls and self._matches(group, queue):
                        yield from self._wake(waiting, group, queue)
                    yield
        finally:
            waiting.is_looking = False

    def _look_by_tags(self, waiting: HeldQueue, queue: ConsumeQueue) -> _Work:
        """Wake the groups that want everything, or a tag that arrived."""
        more = True
        while more:
            groups, more = waiting.wanted_by_tags(queue)
            for group in groups:
                yield from self._wake(waiting, group, queue)
            if more:
                yield

    def _wake(self, waiting: HeldQueue, group: HeldGroup, queue: ConsumeQueue) -> _Work:
        for pull in list(group.pulls):
            header: PullMessageRequestHeader = pull.request.header
            if header.queue_offset != queue.max_offset() or pull.is_earlier:  # else it came after the message
                self._try(waiting, group, pull)
            yield

    def _matches(self, group: HeldGroup, queue: ConsumeQueue) -> bool:
        """True when there is, or may be, a message for these pulls among the new ones."""
        wanted = group.wanted
        result = self._store.get_message(
            queue, group.scanned_to, 1, tag_codes=wanted.codes, predicate=wanted.predicate, choose=wanted.choose
        )
        if result.status is GetMessageStatus.NO_MATCHED_MESSAGE:
            group.scanned_to = result.next_begin_offset
            return group.scanned_to < queue.max_offset()  # the rest is too much for now: the clients ask again
        return result.status is GetMessageStatus.FOUND

    # --- sweeps -------------------------------------------------------------------------------------
    def _has_grown(self, pull: HeldPull) -> bool:
        header: PullMessageRequestHeader = pull.request.header
        end = self._store.queue(header.topic, header.queue_id).max_offset()
        return end > header.queue_offset or (end > 0 and pull.is_earlier)

    def _sweep(self) -> None:
        self._next_sweep.after(_TIMEOUT_SWEEP_S)
        self._sweeps += 1
        self._sweep_is_due = True
        self._looks_for_growth |= not self._sweeps % _GROWTH_SWEEPS
        if not self._is_sweeping:
            self._is_sweeping = True
            self._run(self._sweep_all(), self._clock.monotonic() + HELD_SLICE_SECONDS)

    def _sweep_all(self) -> _Work:
        """Sweep; once more when a sweep became due meanwhile."""
        try:
            while self._sweep_is_due:
                self._sweep_is_due = False
                now, grown = self._clock.monotonic(), self._looks_for_growth
                self._looks_for_growth = False
                yield from self._answer_all(partial(self._is_due, now, grown))
        finally:
            self._is_sweeping = False

    def _is_due(self, now: float, grown: bool, pull: HeldPull) -> bool:
        return pull.deadline <= now or (grown and self._has_grown(pull))

    def _answer_all(self, due: Callable[[HeldPull], bool]) -> _Work:
        """Answer the pulls that are due, and drop those whose connection is closed."""
        for waiting in list(self._queues.values()):
            for group in list(waiting.groups.values()):
                for pull in list(group.pulls):
                    if pull.connection.closed or due(pull):
                        self._try(waiting, group, pull)
                    yield

    # --- answers ------------------------------------------------------------------------------------
    def _try(self, waiting: HeldQueue, group: HeldGroup, pull: HeldPull) -> None:
        """Answer a pull, unless it was answered meanwhile or its client is behind with reading."""
        connection = pull.connection
        if pull not in group.pulls or (connection.is_behind and not self._stopped and not connection.closed):
            return
        del group.pulls[pull]
        if not group.pulls:
            self._chars -= group.chars
            waiting.remove(group)
            if not waiting.groups:
                self._queues.pop(waiting.key, None)
        if connection.closed:  # already counted out
            return
        held = self._held_of[connection]
        held.count -= 1
        held.chars -= pull.chars
        self._count -= 1
        self._chars -= pull.chars
        assert self.answer is not None
        try:
            response = self.answer(pull)
        except Exception as error:  # one broken pull must not keep the others from being answered
            _log.exception("a held pull of %s failed", connection.remote_address)
            response = Response(1, remark=f"{type(error).__name__}: {error}")
        connection.respond(pull.request, response, polling=True)

    def _connection_closed(self, connection: ServerConnection) -> None:
        """Count its pulls out at once; the next sweep takes all lost pulls from their queues together."""
        held = self._held_of.pop(connection)
        self._count -= held.count
        self._chars -= held.chars
