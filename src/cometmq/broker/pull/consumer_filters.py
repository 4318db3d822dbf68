"""SQL92 filters of consumer groups, and the file that stores them (``ConsumerFilterManager``).

Heartbeats register a group's expression for each topic. The table is stored in ``config/consumerFilter.json``; changes
are written to the file's journal after a few seconds. A filter is dead when its group's last member has left or the
group no longer subscribes to the topic. Dead filters are removed after ``filterDataCleanTimeSpan``.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq import fastjson
from cometmq.broker.config import LiveConfig
from cometmq.broker.limits import (
    FILTER_CHARS_PER_SLICE,
    MAX_CONSUMER_FILTER_CHARS,
    MAX_CONSUMER_FILTERS,
    TABLE_ROWS_PER_SLICE,
)
from cometmq.broker.slices import batches
from cometmq.broker.tables.journaled_file import JournaledFile
from cometmq.broker.tables.row_writer import RowWriter
from cometmq.clock import Clock
from cometmq.filter import SQL92, FilterError, parse_selector
from cometmq.filter.bloom import BloomFilter, BloomFilterData
from cometmq.loop import finish
from cometmq.message.names import check_group, check_topic
from cometmq.remoting.bodies import SubscriptionData, to_builtins

_log = logging.getLogger(__name__)

_TAG: Final = "TAG"

_DEPTH: Final = 4
"""Nesting depth of a filter in the file: table, topic, ``groupFilterData``, group."""
_DEAD_SINCE_MS: Final = 30_000
"""Milliseconds for which a loaded filter counts as having been dead if it was alive when the file was written."""


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether expressions of this type consist of tags (``ExpressionType.isTagType``)."""
    return not expression_type or expression_type == _TAG


class ConsumerFilterData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's filter for a topic, in the file's format."""

    topic: str
    consumer_group: str
    expression: str
    expression_type: str
    client_version: int
    """Version of the subscription; a subscription with a newer version replaces the filter."""
    born_time: int
    dead_time: int = 0
    """Time at which the filter became dead, in milliseconds since 1970, or 0 if it is alive."""
    dead: bool = False
    bloom_filter_data: BloomFilterData | None = None


class FilterDataMapByTopic(msgspec.Struct, rename="camel"):
    """The filters for a topic, by group."""

    topic: str
    group_filter_data: dict[str, ConsumerFilterData] = msgspec.field(default_factory=dict)


class ConsumerFilterTable(msgspec.Struct, rename="camel"):
    """The contents of the file."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = msgspec.field(default_factory=dict)


class ConsumerFilterManager:
    """The table of SQL92 filters and its file."""

    def __init__(self, live: LiveConfig, path: Path, *, clock: Clock) -> None:
        config = live.current
        self._live = live
        self._file = JournaledFile(path, depth=_DEPTH, clock=clock)
        self._writer = RowWriter(self._file, self._changed_rows, self._pieces)
        self._clock = clock
        self._bloom = BloomFilter.create(config.max_error_rate_of_bloom_filter, config.expect_consumer_num_use_filter)
        self._topics_of: dict[str, dict[str, ConsumerFilterData]] = {}
        """The topics for which each group has filters."""
        self._dead: dict[tuple[str, str], ConsumerFilterData] = {}
        """Dead filters by group and topic, the longest dead first."""
        self._unparsed: set[tuple[str, str]] = set()
        """Filters by group and topic whose expressions have not been parsed since the file was loaded: parsing ten
        thousand at a start takes a second, and many are never used again."""
        self._count = 0
        self._chars = 0

    def __len__(self) -> int:
        return self._count

    def load(self) -> list[str]:
        """Load the file; return one line for each unusable entry.

        All filters are dead until the next heartbeat of their group. As in Apache's broker, the file is ignored if the
        Bloom filter's parameters have changed since it was written. An unusable file is set aside. An expression is
        parsed when its filter is first used.
        """
        stored = self._file.load_body(ConsumerFilterTable)
        findings = list(self._file.findings)
        if stored is None:
            return findings
        entries = [data for topic in stored.filter_data_by_topic.values() for data in topic.group_filter_data.values()]
        if not all(self._bloom.made(data.bloom_filter_data) for data in entries):
            return [
                "consumerFilter.json: ignored, since the Bloom filter parameters changed; groups will register again"
            ]
        dead_time = self._clock.now_ms() - _DEAD_SINCE_MS
        for data in entries:
            wrong = check_topic(data.topic) or check_group(data.consumer_group) or _fault_of_type(data)
            if wrong is not None:
                findings.append(
                    f"consumerFilter.json: filter of {data.consumer_group!r} for {data.topic!r} ignored: {wrong}"
                )
            elif self._make_room(len(data.expression)):
                if not data.dead_time:
                    data = msgspec.structs.replace(data, dead=True, dead_time=max(dead_time, data.born_time))
                self._store_filter(data)
                self._unparsed.add((data.consumer_group, data.topic))
        self._dead = dict(sorted(self._dead.items(), key=lambda entry: entry[1].dead_time))
        return findings

    def get(self, topic: str, group: str) -> ConsumerFilterData | None:
        """Return a group's filter for a topic, even if it is dead."""
        data = self._find(topic, group)
        if data is None or (group, topic) not in self._unparsed:
            return data
        self._unparsed.discard((group, topic))
        wrong = _fault_of(data)
        if wrong is None:
            return data
        _log.warning("consumerFilter.json: filter of %r for %r ignored: %s", group, topic, wrong)
        self._remove(data)
        return None

    def _find(self, topic: str, group: str) -> ConsumerFilterData | None:
        topics = self._topics_of.get(group)
        return None if topics is None else topics.get(topic)

    # --- changes ------------------------------------------------------------------------------
    def has_filters(self, group: str) -> bool:
        """Return whether a group has filters, so that :meth:`register` may change them even if it gets only tags."""
        return group in self._topics_of

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Register the subscriptions in a heartbeat. The group and topic names must have been checked."""
        finish(self.register_in_slices(group, subscriptions))

    def register_in_slices(self, group: str, subscriptions: Iterable[SubscriptionData]) -> Generator[None, None, None]:
        """Register subscriptions in slices, like :meth:`register`."""
        named: set[str] = set()
        chars = 0
        for subscription in subscriptions:
            named.add(subscription.topic)
            if subscription.sub_string and not is_tag_type(subscription.expression_type):
                if chars >= FILTER_CHARS_PER_SLICE:
                    chars = 0
                    yield
                chars += len(subscription.sub_string)
                self._register(group, subscription)
        for topic, data in list(self._topics_of.get(group, {}).items()):
            if topic not in named:
                self._mark_dead(data)

    def unregister(self, group: str) -> None:
        """Mark a group's filters as dead because its last member has left."""
        for data in list(self._topics_of.get(group, {}).values()):
            self._mark_dead(data)

    def clean(self) -> None:
        """Remove filters that have been dead for too long."""
        horizon = self._clock.now_ms() - self._live.current.filter_data_clean_time_span
        for data in [data for data in self._dead.values() if data.dead_time <= horizon]:
            self._remove(data)

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        old = self.get(subscription.topic, group)
        version = subscription.sub_version
        same = old is not None and (old.expression, old.expression_type) == (
            subscription.sub_string,
            subscription.expression_type,
        )
        if old is not None and version <= old.client_version:
            if version == old.client_version and old.dead:
                self._store_filter(msgspec.structs.replace(old, dead=False, dead_time=0))
            elif not same:
                _log.info("ignored an older version of the filter of %s for %s", group, subscription.topic)
            return
        if old is not None and same:
            self._store_filter(msgspec.structs.replace(old, client_version=version, dead=False, dead_time=0))
            return
        data = ConsumerFilterData(
            topic=subscription.topic,
            consumer_group=group,
            expression=subscription.sub_string,
            expression_type=subscription.expression_type,
            client_version=version,
            born_time=self._clock.now_ms(),
            bloom_filter_data=self._bloom.data(group, subscription.topic),
        )
        if old is not None:
            self._remove(old)
        wrong = _fault_of(data)
        if wrong is not None:  # the consumer learns it when its pulls are refused
            _log.warning("cannot use the filter of %s for %s: %s", group, data.topic, wrong)
        elif not self._make_room(len(data.expression)):
            _log.warning(
                "cannot store the filter of %s for %s: this broker already has the maximum number of filters",
                group,
                data.topic,
            )
        else:
            self._store_filter(data)

    def _mark_dead(self, data: ConsumerFilterData) -> None:
        if not data.dead:
            self._store_filter(msgspec.structs.replace(data, dead=True, dead_time=self._clock.now_ms()))

    def _make_room(self, chars: int) -> bool:
        """Remove the filters that have been dead longest until one more fits; return False if there is still no
        room.
        """
        while not self._has_room(chars):
            longest_dead = next(iter(self._dead.values()), None)
            if longest_dead is None:
                return False
            self._remove(longest_dead)
        return True

    def _has_room(self, chars: int) -> bool:
        return self._count < MAX_CONSUMER_FILTERS and self._chars + chars <= MAX_CONSUMER_FILTER_CHARS

    def _store_filter(self, data: ConsumerFilterData) -> None:
        topics = self._topics_of.setdefault(data.consumer_group, {})
        if data.topic not in topics:
            self._count += 1
            self._chars += len(data.expression)
        topics[data.topic] = data
        if data.dead:
            self._dead[data.consumer_group, data.topic] = data
        else:
            self._dead.pop((data.consumer_group, data.topic), None)
        self._writer.changed((data.topic, data.consumer_group))

    def _remove(self, data: ConsumerFilterData) -> None:
        topics = self._topics_of[data.consumer_group]
        del topics[data.topic]
        self._dead.pop((data.consumer_group, data.topic), None)
        self._unparsed.discard((data.consumer_group, data.topic))
        if not topics:
            del self._topics_of[data.consumer_group]
        self._count -= 1
        self._chars -= len(data.expression)
        self._writer.changed((data.topic, data.consumer_group))

    # --- the file -----------------------------------------------------------------------------
    async def save_in_background(self) -> None:
        """Write the changes, and the complete file when it is due; after a failure the next call tries again."""
        self.clean()
        await self._writer.save_in_thread()

    def save_last(self) -> None:
        """Write the complete file if anything has changed; called when the broker stops."""
        self.clean()
        self._writer.save_last()

    def _changed_rows(self, keys: Iterable[tuple[str, str]]) -> bytes:
        topics: dict[str, dict[str, Any]] = {}
        for topic, group in keys:
            of_topic = topics.setdefault(topic, {"topic": topic, "groupFilterData": {}})
            of_topic["groupFilterData"][group] = self._find(topic, group)
        return msgspec.json.encode({"filterDataByTopic": topics})

    def _pieces(self) -> Iterator[bytes]:
        """Yield the file's text in fastjson's pretty format, slice by slice; one topic may have all filters."""
        by_topic: dict[str, list[ConsumerFilterData]] = {}
        for topics in self._topics_of.values():
            for data in topics.values():
                by_topic.setdefault(data.topic, []).append(data)
        yield b'{\n\t"filterDataByTopic":{'
        before = b"\n\t\t"
        for topic, filters in by_topic.items():
            name = fastjson.dumps(topic)
            yield b'%s%s:{\n\t\t\t"groupFilterData":{' % (before, name)
            first = b"\n\t\t\t\t"
            for some in batches(filters, TABLE_ROWS_PER_SLICE):
                yield first + b",\n\t\t\t\t".join([_row(data) for data in some])
                first = b",\n\t\t\t\t"
            yield b'\n\t\t\t},\n\t\t\t"topic":%s\n\t\t}' % name
            before = b",\n\t\t"
        yield b"\n\t}\n}" if by_topic else b"}\n}"


def _row(data: ConsumerFilterData) -> bytes:
    """Return a filter's text in its topic's map."""
    return fastjson.dumps(data.consumer_group) + b":" + fastjson.dumps_pretty(to_builtins(data), 4)


def _fault_of(data: ConsumerFilterData) -> str | None:
    """Return why a filter cannot be used, or ``None`` if it can."""
    wrong = _fault_of_type(data)
    if wrong is not None:
        return wrong
    try:
        parse_selector(data.expression)
    except FilterError as error:
        return error.message
    return None


def _fault_of_type(data: ConsumerFilterData) -> str | None:
    """Return why a filter cannot be used whatever its expression is, or ``None`` if it may be usable."""
    return None if data.expression_type == SQL92 else f"unknown expression type {data.expression_type[:40]!r}"
