"""The options for the store reader, ``format("rocketmq_store")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.options import option, options_of
from cometmq.options.forms import COUNT
from cometmq.spark.errors import OptionError
from cometmq.spark.options import (
    BAD_BODIES,
    INSTANT,
    PATH,
    TOPIC_OPTION_NAMES,
    canonical_options,
    demand_forward,
    folded_names,
    parse_declared,
    parse_option,
    parse_topics,
)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """A reader's options, one field each (see ``docs/spark.md``)."""

    path: str
    topics: tuple[str, ...]
    topic_pattern: str | None
    broker_name: str = option("")
    starting_timestamp: int = option(-(1 << 63), form=INSTANT)
    ending_timestamp: int = option((1 << 63) - 1, form=INSTANT)
    min_partitions: int = option(1, form=COUNT)
    include_body: bool = option(True)
    fail_on_bad_body: bool = option(True, key="badBodies", form=BAD_BODIES)
    bad_records_path: str | None = option(None, form=PATH)
    use_consume_queue: bool = option(True)


STORE_OPTION_NAMES: Final = ("path", *TOPIC_OPTION_NAMES, *options_of(StoreOptions))
_FOLDED: Final = folded_names(STORE_OPTION_NAMES, {})


def parse_store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse a reader's options.

    :raises OptionError: an option is unknown, is missing, is given twice or has an invalid value.
    """
    values = canonical_options("the store reader", given, _FOLDED)
    path = parse_option("path", PATH, values.get("path", ""))
    if path is None:
        raise OptionError("the store's directory is missing", next_step="as in .load('/backup/store')")
    asks = any(name in values for name in TOPIC_OPTION_NAMES)
    topics, pattern = parse_topics(values) if asks else ((), ".*")
    options = StoreOptions(path, topics, pattern, **parse_declared(StoreOptions, values))
    demand_forward("startingTimestamp", options.starting_timestamp, "endingTimestamp", options.ending_timestamp)
    return options
