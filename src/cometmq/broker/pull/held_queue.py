"""The pulls that are waiting for a queue, grouped by the messages that they want."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from cometmq.broker.limits import HELD_CODE_CHARS, HELD_SQL_CHARS, HELD_SQL_FACTOR
from cometmq.broker.pull.filters import MessageFilter, PredicateKey
from cometmq.remoting.headers import PullMessageRequestHeader
from cometmq.remoting.processors import Request
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import ConsumeQueue
from cometmq.store.queue.consume_queue import UNIT

_UNITS: Final = 1_024
"""Number of units whose tags are checked in one step."""

_Key = tuple[frozenset[int] | None, PredicateKey | None, int]


class HeldPull(msgspec.Struct, eq=False):
    """A waiting pull."""

    connection: ServerConnection
    request: Request[Any]
    wanted: MessageFilter
    topic_was_deleted: bool = False
    """True if the topic was deleted while the pull was waiting."""
    deadline: float = 0.0
    """End of the wait time in monotonic seconds."""
    queue: HeldQueue | None = None
    group: SameFilterPulls | None = None
    """The queue for which the pull is waiting, and the pull's group there."""
    chars: int = 0
    """Length of the texts that are kept in memory while the pull waits."""


def kept_chars(request: Request[PullMessageRequestHeader]) -> int:
    """Return the length of the texts that are kept in memory while a pull waits."""
    header, language = request.header, request.language
    chars = len(header.topic) + len(header.consumer_group) + len(header.subscription or "")
    return chars + len(header.expression_type or "") + (len(language) if isinstance(language, str) else 0)


class SameFilterPulls(msgspec.Struct, eq=False):
    """Pulls from one queue that want the same messages."""

    key: _Key
    wanted: MessageFilter
    scanned_to: int
    """Queue offset before which no message matches; not updated for tag filters."""
    chars: int
    """Length of the filter, in characters."""
    pulls: dict[HeldPull, None]


class HeldQueue:
    """The groups of pulls that are waiting for one queue.

    Pulls with the same filter share a group if they wait at the end of the queue; at a gap, there is a group for each
    offset.
    """

    __slots__ = ("_by_code", "_everything", "_tags_to", "groups", "has_more", "is_looking", "key", "others")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.groups: dict[_Key, SameFilterPulls] = {}
        self.others: dict[SameFilterPulls, None] = {}
        """Groups whose filters must read the messages."""
        self.is_looking = False
        self.has_more = False
        self._everything: SameFilterPulls | None = None
        self._by_code: dict[int, dict[SameFilterPulls, None]] = {}
        self._tags_to = 0
        """Messages before this offset have been checked by their tags."""

    @property
    def only_pull(self) -> HeldPull | None:
        """Return the only waiting pull if it wants all messages."""
        group = self._everything
        if group is None or len(self.groups) > 1 or len(group.pulls) > 1:
            return None
        return next(iter(group.pulls))

    @property
    def can_wake_by_tags(self) -> bool:
        """Return whether some groups can be woken without reading messages."""
        return self._everything is not None or bool(self._by_code)

    def group(self, pull: HeldPull, end: int) -> SameFilterPulls:
        """Return the group for a pull; a new group is not added to this queue."""
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
            group = SameFilterPulls(key, wanted, min(offset, end), chars, {})
        return group

    def add(self, group: SameFilterPulls) -> None:
        """Add a group of pulls."""
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

    def remove(self, group: SameFilterPulls) -> None:
        """Remove a group that has no pulls left."""
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

    def match_by_tags(self, queue: ConsumeQueue) -> tuple[list[SameFilterPulls], bool]:
        """Return the groups that want new messages according to their tags, and whether unchecked messages remain."""
        groups = [] if self._everything is None else [self._everything]
        end = queue.max_offset()
        if not self._by_code:
            self._tags_to = end
            return groups, False
        if self._tags_to > end:  # the topic was deleted and created again
            self._tags_to = queue.min_offset()
        raw = queue.units(self._tags_to, _UNITS)
        if not raw:  # a gap, which the sweeps skip
            self._tags_to = end
            return groups, False
        self._tags_to += len(raw) // UNIT.size
        codes = {unit[2] for unit in UNIT.iter_unpack(raw)} & self._by_code.keys()
        if len(codes) == 1:
            groups += self._by_code[codes.pop()]
        elif codes:
            groups += dict.fromkeys(group for code in codes for group in self._by_code[code])
        return groups, self._tags_to < end
