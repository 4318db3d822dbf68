"""The options of the store reader, ``format("rocketmq_store")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.spark.errors import OptionError
from cometmq.spark.options import (
    canonical_options,
    parse_bad_bodies,
    parse_count,
    parse_flag,
    parse_instant,
    parse_topics,
)

STORE_OPTION_NAMES: Final = (
    *("path", "topic", "subscribe", "subscribePattern", "brokerName"),
    *("startingTimestamp", "endingTimestamp", "minPartitions"),
    *("includeBody", "badBodies", "badRecordsPath", "useConsumeQueue"),
)
_FOLDED: Final = {name.lower(): name for name in STORE_OPTION_NAMES}
_TOPIC_OPTIONS: Final = ("topic", "subscribe", "subscribePattern")


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """What a reader of a store was asked for; every field is one option (see ``docs/spark.md``)."""

    path: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    broker_name: str
    starting_timestamp: int
    ending_timestamp: int
    min_partitions: int
    include_body: bool
    fail_on_bad_body: bool
    bad_records_path: str | None
    use_consume_queue: bool


def parse_store_options(given: Mapping[str, str]) -> StoreOptions:
    """Read the options.

    :raises OptionError: an option is unknown, missing, doubled or has a bad value.
    """
    values = canonical_options("the store reader", given, _FOLDED)
    if not values.get("path"):
        raise OptionError("the store's directory is missing", next_step="as in .load('/backup/store')")
    asks = any(name in values for name in _TOPIC_OPTIONS)
    topics, pattern = parse_topics(values) if asks else ((), ".*")
    return StoreOptions(
        path=values["path"],
        topics=topics,
        topic_pattern=pattern,
        broker_name=values.get("brokerName", ""),
        starting_timestamp=parse_instant("startingTimestamp", values.get("startingTimestamp", str(-(1 << 63)))),
        ending_timestamp=parse_instant("endingTimestamp", values.get("endingTimestamp", str((1 << 63) - 1))),
        min_partitions=parse_count("minPartitions", values.get("minPartitions", "1")),
        include_body=parse_flag("includeBody", values.get("includeBody", "true")),
        fail_on_bad_body=parse_bad_bodies("badBodies", values.get("badBodies", "fail")),
        bad_records_path=values.get("badRecordsPath") or None,
        use_consume_queue=parse_flag("useConsumeQueue", values.get("useConsumeQueue", "true")),
    )
