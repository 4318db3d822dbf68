"""The options of the rocketmq source: names in the manner of Spark's Kafka connector, words of RocketMQ.

Spark folds the case of option names, so they are looked up without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from cometmq.message.hosts import parse_address
from cometmq.message.names import check_group, check_topic
from cometmq.options import nearest
from cometmq.spark.access import ACCESS_OPTION_NAMES, SECRET_OPTION_NAMES, Access, parse_access
from cometmq.spark.errors import OptionError

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
_CODES: Final = {-2: EARLIEST, -1: LATEST}
"""What Kafka users write for earliest and latest inside JSON."""

DEFAULT_GROUP: Final = "cometmq_spark"
MAX_PARTITION_BYTES: Final = 128 * 1024 * 1024
"""As Spark cuts files (``spark.sql.files.maxPartitionBytes``)."""
MAX_TRIGGER_DELAY_SECONDS: Final = 900.0
"""As in Spark's Kafka connector."""

Start = str | dict[str, Any]
"""``earliest``, ``latest``, or offsets nested by topic, broker and queue; a level may be one word for all below it."""


Times = int | dict[str, int]
"""Milliseconds since 1970, for all topics or by topic."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader was asked for; every field is one option (see ``docs/spark.md``)."""

    namesrv_addr: tuple[str, ...]
    topics: tuple[str, ...]
    topic_pattern: str | None
    starting_offsets: Start | None
    ending_offsets: Start
    starting_timestamp: Times | None
    ending_timestamp: Times | None
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int
    max_trigger_delay_s: float
    tags: frozenset[str]
    sql_filter: str
    commit_group: str | None
    from_slaves: bool
    min_partitions: int
    max_partition_bytes: int
    push_filters: bool
    consumer_group: str
    pull_batch_size: int
    poll_timeout_ms: int
    include_body: bool
    fail_on_bad_body: bool
    bad_records_path: str | None
    access: Access

    @property
    def poll_timeout_s(self) -> float:
        """How long a read may stand still, in seconds."""
        return self.poll_timeout_ms / 1000

    @property
    def is_filtered(self) -> bool:
        """Whether the broker is asked for some of the messages only."""
        return bool(self.tags or self.sql_filter)


def parse_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a reader.

    :raises OptionError: an option is unknown (the nearest known one is named), missing, doubled or has a bad value.
    """
    values = canonical_options("the rocketmq source", given, _FOLDED)
    topics, pattern = parse_topics(values)

    def read(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
        return parse(name, values[name]) if name in values else default

    options = SourceOptions(
        namesrv_addr=parse_addresses(values),
        topics=topics,
        topic_pattern=pattern,
        starting_offsets=read("startingOffsets", _start, None),
        ending_offsets=read("endingOffsets", _start, LATEST),
        starting_timestamp=read("startingTimestamp", _times, None),
        ending_timestamp=read("endingTimestamp", _times, None),
        fail_on_data_loss=read("failOnDataLoss", parse_flag, True),
        max_offsets_per_trigger=read("maxOffsetsPerTrigger", parse_count, None),
        max_bytes_per_trigger=read("maxBytesPerTrigger", _bytes, None),
        min_offsets_per_trigger=read("minOffsetsPerTrigger", parse_count, 1),
        max_trigger_delay_s=read("maxTriggerDelay", _duration_s, MAX_TRIGGER_DELAY_SECONDS),
        tags=read("tags", _tags, frozenset()),
        sql_filter=values.get("sqlFilter", ""),
        commit_group=read("commitGroup", parse_group, None),
        from_slaves=read("readFrom", _read_from, False),
        min_partitions=read("minPartitions", parse_count, 1),
        max_partition_bytes=read("maxPartitionBytes", _bytes, MAX_PARTITION_BYTES),
        push_filters=read("pushFilters", parse_flag, False),
        consumer_group=read("consumerGroup", parse_group, DEFAULT_GROUP),
        pull_batch_size=read("pullBatchSize", parse_count, 1024),
        poll_timeout_ms=read("pollTimeoutMs", parse_count, 120_000),
        include_body=read("includeBody", parse_flag, True),
        fail_on_bad_body=read("badBodies", parse_bad_bodies, True),
        bad_records_path=values.get("badRecordsPath") or None,
        access=parse_access(values),
    )
    if options.starting_offsets is not None and options.starting_timestamp is not None:
        raise OptionError("startingOffsets and startingTimestamp exclude each other")
    if options.tags and options.sql_filter:
        raise OptionError("tags and sqlFilter exclude each other", next_step="SQL92 can say TAGS = 'TagA' too")
    if "endingOffsets" in values and options.ending_timestamp is not None:
        raise OptionError("endingOffsets and endingTimestamp exclude each other")
    if options.bad_records_path is not None and options.fail_on_bad_body:
        raise OptionError("badRecordsPath tells nothing while badBodies is fail", next_step="give badBodies=null too")
    return options


def canonical_options(owner: str, given: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
    """Options by their own names; ``known`` has these by all names, aliases too, in small letters.

    :raises OptionError: one is unknown (the nearest known one is named) or given twice.
    """
    values: dict[str, str] = {}
    for name, value in given.items():
        canonical = known.get(name.lower())
        if canonical is None:
            near = nearest(name, known.values())
            raise OptionError(
                f"{owner} has no option {name!r}",
                next_step=f"did you mean {near}?" if near else f"it has {', '.join(dict.fromkeys(known.values()))}",
            )
        if canonical in values and values[canonical] != value:
            both = "" if canonical in SECRET_OPTION_NAMES else f", as {values[canonical]!r} and {value!r}"
            raise OptionError(f"option {canonical} is given twice{both}")
        values[canonical] = value
    return values


def demand_batch(options: SourceOptions) -> None:
    """Refuse what a batch cannot mean.

    :raises OptionError: it would begin at the latest or end at the earliest offsets, or has a rate limit.
    """
    if options.starting_offsets == LATEST:
        raise OptionError("a batch cannot begin at the latest offsets", next_step="use earliest, JSON or a timestamp")
    if options.ending_offsets == EARLIEST:
        raise OptionError("a batch cannot end at the earliest offsets", next_step="use latest, JSON or a timestamp")
    for name, is_given in (
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger is not None),
        ("maxBytesPerTrigger", options.max_bytes_per_trigger is not None),
        ("minOffsetsPerTrigger", options.min_offsets_per_trigger != 1),
        ("maxTriggerDelay", options.max_trigger_delay_s != MAX_TRIGGER_DELAY_SECONDS),
    ):
        if is_given:
            raise OptionError(f"{name} is for streams", next_step="use endingOffsets to read less")
    if options.commit_group is not None:
        raise OptionError("commitGroup is for streams", next_step="a batch has no progress to show to a group")


def demand_stream(options: SourceOptions) -> None:
    """Refuse what a stream cannot mean.

    :raises OptionError: it has an end, or filters that Spark pushes to batches only.
    """
    if options.ending_timestamp is not None or options.ending_offsets != LATEST:
        raise OptionError(
            "a stream has no endingOffsets or endingTimestamp",
            next_step="use .trigger(availableNow=True) to stop at what is there now, or spark.read",
        )
    if options.push_filters:
        raise OptionError("pushFilters is for batches", next_step="a stream narrows by tags and sqlFilter")


def offset_named(start: Start, path: tuple[str, str, int]) -> int | str | None:
    """What offsets in JSON say about the queue ``(topic, broker, queue id)``: an offset, a word, or None."""
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
    """Yield the places that offsets in JSON name, each level of them: ``(topic, broker, queue id)`` or less."""
    for topic, brokers in start.items():
        yield (topic,)
        for broker, queues in brokers.items() if isinstance(brokers, dict) else ():
            yield (topic, broker)
            for queue_id in queues if isinstance(queues, dict) else ():
                yield (topic, broker, int(queue_id))


def parse_topics(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    """The topics, or the pattern of their names, that ``topic``, ``subscribe`` or ``subscribePattern`` asks for.

    :raises OptionError: none or several of these are given, or a name is not allowed.
    """
    given = [name for name in ("topic", "subscribe", "subscribePattern") if name in values]
    if len(given) != 1:
        raise OptionError(
            "exactly one of topic, subscribe and subscribePattern must be given"
            + (f", not {' and '.join(given)}" if given else "")
        )
    text = values[given[0]]
    if given[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"subscribePattern {text!r} is not a regular expression: {error}") from error
        return (), text
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise OptionError(f"option {given[0]} names no topic")
    for name in names:
        if fault := check_topic(name):
            raise OptionError(f"option {given[0]}: {fault}")
    return names, None


def parse_addresses(values: Mapping[str, str]) -> tuple[str, ...]:
    """The nameservers of option ``namesrvAddr``."""
    text = values.get("namesrvAddr", "")
    addresses = tuple(part.strip() for part in re.split("[;,]", text) if part.strip())
    if not addresses:
        raise OptionError("option namesrvAddr is missing", next_step="as in .option('namesrvAddr', '127.0.0.1:9876')")
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise OptionError(f"option namesrvAddr: {error}") from error
    return addresses


def _start(name: str, text: str) -> Start:
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name} is neither earliest, latest nor JSON: {text!r}") from error
    if not isinstance(parsed, dict):
        raise OptionError(f"option {name} must be a JSON object by topic, not {text!r}")
    _check_start(name, parsed, 0)
    return parsed


def _check_start(name: str, value: Any, depth: int) -> None:
    if isinstance(value, dict) and depth < 3:
        for key, inner in value.items():
            if depth == 2 and not re.fullmatch("0|[1-9][0-9]{0,9}", key):
                raise OptionError(f"option {name}: {key!r} is not the number of a queue")
            _check_start(name, inner, depth + 1)
    elif isinstance(value, bool) or not (value in (EARLIEST, LATEST) or (isinstance(value, int) and value >= -2)):
        raise OptionError(
            f"option {name}: {value!r} is not an offset",
            next_step='the form is {"topic": {"broker": {"0": 12, "1": "latest"}}} or {"topic": "earliest"}',
        )
    elif isinstance(value, int) and value >= 0 and depth < 3:
        raise OptionError(f"option {name}: offset {value} must stand below a topic, a broker and a queue")


def parse_instant(name: str, text: str) -> int:
    """Milliseconds since 1970 or an ISO 8601 time (UTC unless it says otherwise)."""
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise OptionError(f"option {name}: {text!r} is neither milliseconds since 1970 nor an ISO 8601 time") from error
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _times(name: str, text: str) -> Times:
    if not text.lstrip().startswith("{"):
        return parse_instant(name, text)
    try:
        by_topic = json.loads(text)
    except ValueError as error:
        raise OptionError(f"option {name} is no JSON: {text!r}") from error
    return {topic: parse_instant(f"{name} of {topic}", str(moment)) for topic, moment in by_topic.items()}


_BYTE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _bytes(name: str, text: str) -> int:
    match = re.fullmatch(r"(\d{1,15}) ?([kmg]?)b?", text.strip().lower())
    if match is None or int(match[1]) < 1:
        raise OptionError(f"option {name} is a number of bytes such as 500000, 64m or 2g, not {text!r}")
    return int(match[1]) * _BYTE_UNITS[match[2]]


def _duration_s(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}) ?(ms|s|m|h)", text.strip().lower())
    if match is None:
        raise OptionError(f"option {name} is a time such as 500ms, 30s, 15m or 1h, not {text!r}")
    return int(match[1]) * _SECONDS[match[2]]


def _tags(name: str, text: str) -> frozenset[str]:
    found = frozenset(tag.strip() for tag in text.split("||"))
    if "" in found or "*" in found:
        raise OptionError(
            f"option {name} is tags such as 'TagA || TagB', not {text!r}", next_step="leave it out to read all messages"
        )
    return found


def _read_from(name: str, text: str) -> bool:
    if text not in ("master", "slave"):
        raise OptionError(f"option {name} is master or slave, not {text!r}")
    return text == "slave"


def parse_flag(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    folded = text.strip().lower()
    if folded not in ("true", "false"):
        raise OptionError(f"option {name} is true or false, not {text!r}")
    return folded == "true"


def parse_count(name: str, text: str) -> int:
    """A number from 1 on."""
    if not re.fullmatch(r"\d{1,18}", text.strip()) or int(text) < 1:
        raise OptionError(f"option {name} is a number from 1 on, not {text!r}")
    return int(text)


def parse_group(name: str, text: str) -> str:
    """The name of a group."""
    if fault := check_group(text):
        raise OptionError(f"option {name}: {fault}")
    return text


def parse_bad_bodies(name: str, text: str) -> bool:
    """``fail`` or ``null``: whether a body that cannot be unpacked fails the query."""
    if text not in ("fail", "null"):
        raise OptionError(f"option {name} is fail or null, not {text!r}")
    return text == "fail"


OPTION_NAMES: Final = (
    *("namesrvAddr", "topic", "subscribe", "subscribePattern"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("failOnDataLoss", "maxOffsetsPerTrigger", "minPartitions", "maxPartitionBytes", "pushFilters", "consumerGroup"),
    *("maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("tags", "sqlFilter", "commitGroup", "readFrom"),
    *("pullBatchSize", "pollTimeoutMs", "includeBody", "badBodies", "badRecordsPath"),
    *ACCESS_OPTION_NAMES,
)
_ALIASES: Final = {"nameServer": "namesrvAddr", "pull.batch.size": "pullBatchSize"}
_FOLDED: Final = {name.lower(): name for name in OPTION_NAMES} | {a.lower(): name for a, name in _ALIASES.items()}
