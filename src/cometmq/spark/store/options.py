"""The options for the store reader, ``format("rocketmq_store")``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from cometmq.options import option, options_of
from cometmq.options.forms import COUNT
from cometmq.spark.errors import OptionError
from cometmq.spark.object_stores import STORAGE_OPTION_NAMES, parse_storage
from cometmq.spark.options import (
    BAD_BODIES,
    BAD_RECORDS,
    INSTANT,
    PLACE,
    TOPIC_OPTION_NAMES,
    canonical_options,
    demand_forward,
    folded_names,
    parse_declared,
    parse_option,
    parse_topics,
)
from cometmq.spark.store.place import LocalStore, StorePlace, open_store
from cometmq.spark.store.queues import ConsumeQueues
from cometmq.storage import StorageOptions


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
    bad_records_path: str | None = option(None, form=BAD_RECORDS)
    use_consume_queue: bool = option(True)
    storage: StorageOptions = field(default_factory=StorageOptions)
    plan: str = field(default="", repr=False, compare=False)
    """A random name of this read. A worker keeps what it has read of a remote store until the next read."""

    def open_place(self) -> StorePlace:
        """Return the place of the store.

        :raises CometMQError: see :func:`open_store`.
        """
        return _open_once(self.path, self.storage, self.plan)

    def open_queues(self) -> ConsumeQueues:
        """Return the consume queues.

        :raises CometMQError: see :func:`open_store`.
        """
        place = self.open_place()
        return ConsumeQueues(place) if isinstance(place, LocalStore) else _open_queues_once(place)


@lru_cache(maxsize=2)
def _open_once(path: str, storage: StorageOptions, plan: str) -> StorePlace:  # noqa: ARG001  # part of the key
    return open_store(path, storage)


@lru_cache(maxsize=2)
def _open_queues_once(place: StorePlace) -> ConsumeQueues:
    return ConsumeQueues(place)


STORE_OPTION_NAMES: Final = ("path", *TOPIC_OPTION_NAMES, *options_of(StoreOptions), *STORAGE_OPTION_NAMES)
_FOLDED: Final = folded_names(STORE_OPTION_NAMES, {})


def parse_store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse a reader's options.

    :raises OptionError: an option is unknown, is missing, is given twice or has an invalid value.
    """
    values = canonical_options("the store reader", given, _FOLDED)
    path = parse_option("path", PLACE, values.get("path", ""))
    if not path:
        raise OptionError("the store's directory is missing", next_step="as in .load('/backup/store')")
    asks = any(name in values for name in TOPIC_OPTION_NAMES)
    topics, pattern = parse_topics(values) if asks else ((), ".*")
    options = StoreOptions(
        path,
        topics,
        pattern,
        storage=parse_storage(values),
        plan=uuid.uuid4().hex,
        **parse_declared(StoreOptions, values),
    )
    demand_forward("startingTimestamp", options.starting_timestamp, "endingTimestamp", options.ending_timestamp)
    return options
