"""Reads topics from the files of a store, in parallel: no broker, no network, every record checked.

The log is cut into stretches (:mod:`~.store_stretches`), one Spark partition each. A consumer would see the records
that its queues name, so records of deleted topics, of an earlier life of a topic made anew, half messages and
rolled-back ones are left out; where the consume queues were not saved, the log alone decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cometmq.message.names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS
from cometmq.spark.apart import bad_bodies
from cometmq.spark.decode import Records, decode
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.store_files import ConsumeQueues
from cometmq.spark.store_options import StoreOptions
from cometmq.spark.store_scan import CHUNK_BYTES
from cometmq.spark.store_stretches import Stretch, sound_records, stretches
from cometmq.spark.worker_memory import in_lasting_worker
from cometmq.store.record_scan import NO_QUEUE_OFFSET


class StoreScan:
    """The records of a store that a consumer of the chosen topics would see, stretch by stretch."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._queues = ConsumeQueues(options.path) if options.use_consume_queue else None
        self._pattern = re.compile(options.topic_pattern) if options.topic_pattern is not None else None
        self._wanted: dict[str, bool] = {}

    def records(self, stretch: Stretch, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records]:
        """Yield sound records in the order of the log; damage goes to ``badRecordsPath``.

        :param chunk_bytes: how many of them together, in bytes of the log.
        :raises StoreReadError: a record is damaged and there is no such path.
        """
        for found in sound_records(stretch, self._options.bad_records_path, chunk_bytes):
            kept = self._visible(found)
            if len(kept):
                yield kept

    def _visible(self, records: Records) -> Records:
        options = self._options
        names, which = records.topic_codes
        keep: npt.NDArray[np.bool_] = np.array([self._wants(name) for name in names], np.bool_)[which]
        keep &= (records.sys_flags & NO_QUEUE_OFFSET) == 0
        times = records.store_timestamps
        keep &= (times >= options.starting_timestamp) & (times < options.ending_timestamp)
        if self._queues is not None and self._queues.present:
            self._drop_disowned(records, keep)
        return records if keep.all() else records.rows(keep)

    def _drop_disowned(self, records: Records, keep: npt.NDArray[np.bool_]) -> None:
        assert self._queues is not None
        names, places = records.topic_codes[0], records.places
        for place in np.unique(places[keep]).tolist():
            units = self._queues.units(names[place >> 32], place & 0xFFFFFFFF)
            if units is not None:
                rows = np.flatnonzero(keep & (places == place))
                keep[rows] = ~units.disowned(records.queue_offsets[rows], records.physical_offsets[rows])

    def _wants(self, topic: str) -> bool:
        wanted = self._wanted.get(topic)
        if wanted is None:
            wanted = self._wanted[topic] = self._decide(topic)
        return wanted

    def _decide(self, topic: str) -> bool:
        if self._pattern is None:
            return topic in self._options.topics
        if topic in SYSTEM_TOPICS or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return False
        deleted = self._queues is not None and self._queues.present and not self._queues.has_topic(topic)
        return not deleted and self._pattern.fullmatch(topic) is not None


def demand_stored(options: StoreOptions) -> bool:
    """Demand that topics asked for by name are in the store; gives whether its consume queues could tell.

    :raises OptionError: they tell that one is not.
    """
    queues = ConsumeQueues(options.path)
    told = options.use_consume_queue and queues.present
    if told:
        demand_present(
            options.topics,
            queues.topics(),
            f"the store {options.path} has no topic",
            next_step="useConsumeQueue=false also reads what deleted topics left in the log",
        )
    return told


class StoreReader(DataSourceReader):
    """The reader behind ``spark.read.format("rocketmq_store")``."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the log."""
        found = stretches(self._options)
        demand_stored(self._options)
        return found

    @in_lasting_worker
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read, check and decode one stretch."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if isinstance(partition, Stretch):
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            options = self._options
            with bad_bodies(fail=options.fail_on_bad_body, directory=options.bad_records_path) as on_bad_body:
                for records in StoreScan(options).records(partition):
                    yield from decode(records, arrow, broker_name=options.broker_name, on_bad_body=on_bad_body)
