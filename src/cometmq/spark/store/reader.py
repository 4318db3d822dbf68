"""Reads a store as a table. Topics are read from the store's files in parallel, without a broker or network, and every
record is checked.

The log is cut into splits (:mod:`~cometmq.spark.store.scan`); each split is one Spark partition. Rows are the messages
that a consumer would receive: the consume queues and the table of deleted topics exclude records from deleted topics
and from earlier generations of a topic, half messages, and rolled-back messages. If these files are missing, only the
log is used.
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
from cometmq.spark.errors import sentence_first
from cometmq.spark.options import demand_present
from cometmq.spark.records.bad_messages import bad_bodies, open_bad_records
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.spark.store.options import StoreOptions
from cometmq.spark.store.scan import CHUNK_BYTES, LogSplit, sound_records, splits
from cometmq.store.log.record_scan import NO_QUEUE_OFFSET


class StoreScan:
    """The records in a store that a consumer of the selected topics would receive."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._queues = options.open_queues() if options.use_consume_queue else None
        self._pattern = re.compile(options.topic_pattern) if options.topic_pattern is not None else None
        self._wanted: dict[str, bool] = {}

    def records(self, split: LogSplit, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Records]:
        """Yield valid records in log order. Damaged records are written to ``badRecordsPath``.

        :param chunk_bytes: number of log bytes that are yielded together.
        :raises StoreReadError: a record is damaged and the path is not set.
        """
        for found in sound_records(split, open_bad_records(self._options), chunk_bytes):
            visible = self._visible(found)
            if len(visible):
                yield visible

    def _visible(self, records: Records) -> Records:
        options = self._options
        names, which = records.topic_codes
        keep: npt.NDArray[np.bool_] = np.array([self._wants(name) for name in names], np.bool_)[which]
        keep &= (records.sys_flags & NO_QUEUE_OFFSET) == 0
        times = records.store_timestamps
        keep &= (times >= options.starting_timestamp) & (times < options.ending_timestamp)
        if self._queues is not None:
            begins = np.array([self._queues.begin_of(name) for name in names], np.int64)
            keep &= records.physical_offsets >= begins[which]
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
    """Check that the requested topics are in the store. Return True if the consume queues proved it.

    :raises OptionError: a topic is not in the store.
    """
    queues = options.open_queues() if options.use_consume_queue else None
    has_queues = queues is not None and queues.present
    if queues is not None and has_queues:
        demand_present(
            options.topics,
            queues.topics(),
            f"the store {options.path} has no topic",
            next_step="useConsumeQueue=false also reads what deleted topics left in the log",
        )
    return has_queues


class StoreReader(DataSourceReader):
    """The reader behind ``spark.read.format("rocketmq_store")``."""

    def __init__(self, options: StoreOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @sentence_first()
    def partitions(self) -> Sequence[InputPartition]:
        """Divide the log into splits."""
        found = splits(self._options)
        demand_stored(self._options)
        return found

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read, check and decode one split of the log."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if isinstance(partition, LogSplit):
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            options = self._options
            with (
                lasting_worker(),
                sentence_first(),
                bad_bodies(options) as on_bad_body,
            ):
                for records in StoreScan(options).records(partition):
                    yield from decode(records, arrow, broker_name=options.broker_name, on_bad_body=on_bad_body)
