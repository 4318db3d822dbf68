"""The options of the store reader, ``format("rocketmq_store")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.spark.errors import OptionError
from cometmq.spark.options import (
    TOPIC_OPTION_NAMES,
    canonical_options,
    demand_forward,
    folded_names,
    option,
    option_names,
    parse_bad_bodies,
    parse_count,
    parse_declared,
    parse_flag,
    parse_instant,
    parse_path,
    parse_topics,
)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a reader, one field each (see ``docs/spark.md``)."""

    path: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    broker_name: str = option("brokerName", lambda _, text: text, "")
    starting_timestamp: int = option("startingTimestamp", parse_instant, -(1 << 63))
    ending_timestamp: int = option("endingTimestamp", parse_instant, (1 << 63) - 1)
    min_partitions: int = option("minPartitions", parse_count, 1)
    include_body: bool = option("includeBody", parse_flag, True)
    fail_on_bad_body: bool = option("badBodies", parse_bad_bodies, True)
    bad_records_path: str | None = option("badRecordsPath", parse_path, None)
    use_consume_queue: bool = option("useConsumeQueue", parse_flag, True)


STORE_OPTION_NAMES: Final = ("path", *TOPIC_OPTION_NAMES, *option_names(StoreOptions))
_FOLDED: Final = folded_names(STORE_OPTION_NAMES, {})


def parse_store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse the options.

    :raises OptionError: an option is unknown, missing, doubled or has a bad value.
    """
    values = canonical_options("the store reader", given, _FOLDED)
    path = parse_path("path", values.get("path", ""))
    if path is None:
        raise OptionError("the store's directory is missing", next_step="as in .load('/backup/store')")
    asks = any(name in values for name in TOPIC_OPTION_NAMES)
    topics, pattern = parse_topics(values) if asks else ((), ".*")
    options = StoreOptions(path, topics, pattern, **parse_declared(StoreOptions, values))
    demand_forward("startingTimestamp", options.starting_timestamp, "endingTimestamp", options.ending_timestamp)
    return options
