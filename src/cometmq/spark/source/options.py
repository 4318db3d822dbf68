"""The rocketmq source's options. Their names follow the style of Spark's Kafka connector and use RocketMQ's terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.java_values import TRIMMED
from cometmq.message.queues import Queue
from cometmq.options import option, options_of
from cometmq.options.forms import COUNT, DURATION, SIZE, Form, named
from cometmq.spark.errors import OptionError
from cometmq.spark.object_stores import STORAGE_OPTION_NAMES, parse_storage
from cometmq.spark.options import (
    BAD_BODIES,
    BAD_RECORDS,
    DEFAULT_GROUP,
    GROUP,
    INSTANT,
    TOPIC,
    TOPIC_OPTION_NAMES,
    canonical_options,
    demand_forward,
    folded_names,
    parse_addresses,
    parse_declared,
    parse_topics,
)
from cometmq.spark.security_options import ACCESS_OPTION_NAMES, Access, parse_access
from cometmq.storage import StorageOptions

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_CODES: Final = {-2: EARLIEST, -1: LATEST}
"""Numbers that stand for earliest and latest in Kafka's JSON."""

MAX_PARTITION_BYTES: Final = 128 * 1024 * 1024
"""Size of the partitions into which Spark divides files (``spark.sql.files.maxPartitionBytes``)."""
MAX_TRIGGER_DELAY_SECONDS: Final = 900.0
"""Default value of the same option in Spark's Kafka connector."""

Start = str | dict[str, Any]
"""``earliest``, ``latest``, or offsets nested by topic, broker and queue. One word may replace an entire level."""


Assigned = Mapping[str, frozenset[int] | Mapping[str, frozenset[int]]]
"""Queue numbers to read, by topic, or by topic and broker."""


Times = int | dict[str, int]
"""Milliseconds since 1970, for all topics or by topic."""


_OFFSETS_FORM: Final = '{"topic": {"broker": {"0": 12, "1": "latest"}}} or {"topic": "earliest"}'
_QUEUES_FORM: Final = '{"topic": [0, 1]}, or {"topic": {"broker": [0, 1]}} for queues of one broker'


def _read_offsets(text: str) -> Start:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    parsed = json.loads(text)
    if not isinstance(parsed, dict):
        raise ValueError
    _check_offsets(parsed, 0)
    return parsed


def _check_offsets(value: Any, depth: int) -> None:
    if isinstance(value, dict) and depth < 3:
        for key, inner in value.items():
            if depth == 2 and not re.fullmatch("0|[1-9][0-9]{0,9}", key):
                raise OptionError(f"is invalid: {key!r} is not the number of a queue")
            _check_offsets(inner, depth + 1)
    elif isinstance(value, bool) or not (value in (EARLIEST, LATEST) or (isinstance(value, int) and value >= -2)):
        raise OptionError(f"is invalid: {value!r} is not an offset", next_step=f"the form is {_OFFSETS_FORM}")
    elif isinstance(value, int) and value >= 0 and depth < 3:
        raise OptionError(f"is invalid: offset {value} must be nested in a topic, a broker and a queue")


def _read_assigned(text: str) -> Assigned:
    parsed = json.loads(text)
    if not isinstance(parsed, dict) or not parsed:
        raise ValueError
    found: dict[str, frozenset[int] | Mapping[str, frozenset[int]]] = {}
    for topic, below in parsed.items():
        TOPIC.parse(topic)
        if isinstance(below, dict) and below:
            found[topic] = {broker: _queue_ids(ids) for broker, ids in below.items()}
        else:
            found[topic] = _queue_ids(below)
    return found


def _queue_ids(ids: Any) -> frozenset[int]:
    if not isinstance(ids, list) or not ids or not all(type(of) is int and 0 <= of < 1 << 31 for of in ids):
        raise OptionError(
            f"is invalid: {ids!r} is not a list of queue numbers", next_step=f"the form is {_QUEUES_FORM}"
        )
    return frozenset(ids)


def _read_times(text: str) -> Times:
    if not text.startswith("{"):
        return INSTANT.read(text)
    return {topic: INSTANT.read(str(time)) for topic, time in json.loads(text).items()}


def _read_tags(text: str) -> frozenset[str]:
    found = frozenset(tag.strip(TRIMMED) for tag in text.split("||"))
    if "" in found or "*" in found:
        reason = f"must be tags such as 'TagA || TagB', not {text!r}"
        raise OptionError(reason, next_step="leave it out to read all messages")
    return found


_ASSIGNED: Final = Form(f"JSON such as {_QUEUES_FORM}", _read_assigned)
_OFFSETS: Final = Form(f"{EARLIEST}, {LATEST} or JSON such as {_OFFSETS_FORM}", _read_offsets)
_TIMES: Final = Form(f"{INSTANT.words}, for all topics or in JSON by topic", _read_times)
_SECONDS: Final = Form(DURATION.words, lambda text: DURATION.read(text) / 1000)
_TAGS: Final = Form("tags", _read_tags, keeps_blanks=True)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A reader's options, one field each (see ``docs/spark.md``)."""

    namesrv_addr: tuple[str, ...]
    topics: tuple[str, ...]
    topic_pattern: str | None
    access: Access
    assign: Assigned | None = option(None, form=_ASSIGNED)
    starting_offsets: Start | None = option(None, form=_OFFSETS)
    ending_offsets: Start = option(LATEST, form=_OFFSETS)
    starting_timestamp: Times | None = option(None, form=_TIMES)
    ending_timestamp: Times | None = option(None, form=_TIMES)
    fail_on_data_loss: bool = option(True)
    max_offsets_per_trigger: int | None = option(None, form=COUNT)
    max_bytes_per_trigger: int | None = option(None, form=SIZE)
    min_offsets_per_trigger: int = option(1, form=COUNT)
    max_trigger_delay_s: float = option(MAX_TRIGGER_DELAY_SECONDS, key="maxTriggerDelay", form=_SECONDS)
    tags: frozenset[str] = option(frozenset(), form=_TAGS)
    sql_filter: str = option("")
    commit_group: str | None = option(None, form=GROUP)
    from_slaves: bool = option(False, key="readFrom", form=named({"master": False, "slave": True}))
    min_partitions: int = option(1, form=COUNT)
    max_partition_bytes: int = option(MAX_PARTITION_BYTES, form=SIZE)
    push_filters: bool = option(False)
    consumer_group: str = option(DEFAULT_GROUP, form=GROUP)
    pull_batch_size: int = option(1024, form=COUNT)
    poll_timeout_ms: int = option(120_000, form=COUNT)
    include_body: bool = option(True)
    fail_on_bad_body: bool = option(True, key="badBodies", form=BAD_BODIES)
    bad_records_path: str | None = option(None, form=BAD_RECORDS)
    storage: StorageOptions = field(default_factory=StorageOptions)

    def assigns(self, queue: Queue) -> bool:
        """Return True if a queue is read. If ``assign`` is not set, all queues are read; otherwise, only the queues in
        it.
        """
        of_topic = None if self.assign is None else self.assign[queue.topic]
        ids = of_topic.get(queue.broker, frozenset()) if isinstance(of_topic, Mapping) else of_topic
        return ids is None or queue.queue_id in ids

    @property
    def poll_timeout_s(self) -> float:
        """Maximum time in seconds during which nothing arrives."""
        return self.poll_timeout_ms / 1000

    @property
    def is_filtered(self) -> bool:
        """True if the broker filters messages by tag or SQL92."""
        return bool(self.tags or self.sql_filter)


OPTION_NAMES: Final = (
    *("namesrvAddr", *TOPIC_OPTION_NAMES, *options_of(SourceOptions)),
    *(*ACCESS_OPTION_NAMES, *STORAGE_OPTION_NAMES),
)
_FOLDED: Final = folded_names(OPTION_NAMES, {"nameServer": "namesrvAddr", "pull.batch.size": "pullBatchSize"})


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse a reader's options.

    :raises OptionError: an option is unknown (the error suggests the nearest known option), is missing, is given twice
        or has an invalid value.
    """
    values = canonical_options("the rocketmq source", given, _FOLDED)
    declared = parse_declared(SourceOptions, values)
    topics = _topics(values, declared.get("assign"))
    options = SourceOptions(
        parse_addresses(values), *topics, parse_access(values), storage=parse_storage(values), **declared
    )
    if options.starting_offsets is not None and options.starting_timestamp is not None:
        raise OptionError("startingOffsets and startingTimestamp cannot be combined")
    if options.tags and options.sql_filter:
        raise OptionError("tags and sqlFilter cannot be combined", next_step="add TAGS = 'TagA' to sqlFilter")
    if "endingOffsets" in values and options.ending_timestamp is not None:
        raise OptionError("endingOffsets and endingTimestamp cannot be combined")
    if (options.max_offsets_per_trigger or options.min_offsets_per_trigger) < options.min_offsets_per_trigger:
        raise OptionError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
    if options.starting_timestamp is not None and options.ending_timestamp is not None:
        _demand_forward(options.starting_timestamp, options.ending_timestamp)
    if options.bad_records_path is not None and options.fail_on_bad_body:
        raise OptionError(
            "has no effect while badBodies is fail", option="badRecordsPath", next_step="set badBodies=null too"
        )
    return options


def _topics(values: Mapping[str, str], assigned: Assigned | None) -> tuple[tuple[str, ...], str | None]:
    if assigned is None:
        return parse_topics(values, also="assign")
    if given := [name for name in TOPIC_OPTION_NAMES if name in values]:
        raise OptionError(
            f"assign and {given[0]} cannot be combined",
            next_step=f"leave out {given[0]}: assign names the topics and their queues",
        )
    return tuple(assigned), None


def _demand_forward(start: Times, end: Times) -> None:
    by_topic = [set(times) for times in (start, end) if isinstance(times, dict)]
    for topic in sorted(set.intersection(*by_topic)) if by_topic else (None,):
        first, last = (times if isinstance(times, int) else times[topic or ""] for times in (start, end))
        of_topic = f" of topic {topic}" if topic else ""
        demand_forward("startingTimestamp", first, f"endingTimestamp{of_topic}", last)


def demand_batch(options: SourceOptions) -> None:
    """Reject options that are not allowed for a batch.

    :raises OptionError: the batch would begin at the latest or end at the earliest offsets, or has a rate limit.
    """
    start, end = options.starting_offsets, options.ending_offsets
    if LATEST in _words(start, end if isinstance(end, dict) else None):
        raise OptionError(
            "a batch cannot begin at the latest offsets", next_step="use earliest, a number or a timestamp"
        )
    if EARLIEST in _words(end, start if isinstance(start, dict) else None):
        raise OptionError("a batch cannot end at the earliest offsets", next_step="use latest, a number or a timestamp")
    for name, is_given in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger is not None),
        ("maxBytesPerTrigger", options.max_bytes_per_trigger is not None),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger != 1),
        ("maxTriggerDelay", options.max_trigger_delay_s != MAX_TRIGGER_DELAY_SECONDS),
    ):
        if is_given:
            raise OptionError("is only allowed for streams", option=name, next_step="use endingOffsets to read less")
    if options.commit_group is not None:
        raise OptionError(
            "is only allowed for streams", option="commitGroup", next_step="remove it; a batch commits no offsets"
        )


def demand_stream(options: SourceOptions) -> None:
    """Reject options that are not allowed for a stream.

    :raises OptionError: an option would end the stream, or ``pushFilters`` is set, which only batches allow.
    """
    if options.ending_timestamp is not None or options.ending_offsets != LATEST:
        raise OptionError(
            "a stream has no endingOffsets or endingTimestamp",
            next_step="use .trigger(availableNow=True) to stop at the current end, or spark.read",
        )
    if options.push_filters:
        raise OptionError(
            "is only allowed for batches", option="pushFilters", next_step="filter a stream with tags or sqlFilter"
        )


def _words(offsets: Start | None, others: Start | None) -> set[str]:
    """Return the words that JSON offsets contain for any queue, at any level.

    Queues for which ``others``, the offsets for the other end, contain the same word are deliberately left out.
    """
    if isinstance(offsets, dict):
        of_others = others if isinstance(others, dict) else {}
        return set().union(*(_words(found, of_others.get(name)) for name, found in offsets.items()))
    word = _CODES.get(offsets, offsets) if isinstance(offsets, int) else offsets
    return {word} if isinstance(word, str) and offsets != others else set()


def offset_named(start: Start, path: tuple[str, str, int]) -> int | str | None:
    """Look up a queue ``(topic, broker, queue id)`` in offsets from JSON: an offset, a word, or None."""
    found: Any = start
    for part in path:
        if not isinstance(found, dict):
            break
        found = found.get(str(part))
    if found is None or isinstance(found, dict):
        return None
    offset: int | str = _CODES.get(found, found)
    return offset


def named_paths(start: dict[str, Any]) -> Iterator[tuple[str | int, ...]]:
    """Yield every key path in offsets from JSON, at each level: ``(topic, broker, queue id)`` or shorter."""
    for topic, brokers in start.items():
        yield (topic,)
        for broker, queues in brokers.items() if isinstance(brokers, dict) else ():
            yield (topic, broker)
            for queue_id in queues if isinstance(queues, dict) else ():
                yield (topic, broker, int(queue_id))
