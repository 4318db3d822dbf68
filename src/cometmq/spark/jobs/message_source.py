"""The message source of a job: brokers, an archive or a store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.admin import Admin
from cometmq.client.blocking.offsets import Bounds
from cometmq.options.forms import TIME
from cometmq.remoting.security import Security
from cometmq.spark.archives.log import ArchiveLog, differing, read_archive, read_files
from cometmq.spark.errors import OptionError
from cometmq.spark.jobs.job import (
    ACCESS,
    NAMESRV,
    OLD_PLACE,
    STORAGE_HELP,
    STORAGE_SETTINGS,
    job_options,
    option,
)
from cometmq.spark.object_stores import parse_storage, storage_options
from cometmq.spark.options import demand_forward, demand_present
from cometmq.spark.records.columns import BY_NAME
from cometmq.spark.records.queues import Mark, OffsetRange, Offsets, Queue, offsets_to_json
from cometmq.spark.security_options import security_of, server_options
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from cometmq.spark.store.place import StorePlace
    from cometmq.spark.store.queues import ConsumeQueues


@job_options
class MessageSource:
    """The message source of a job: brokers, an archive made by the archive job, or a store's files.

    Exactly one of them must be set.
    """

    namesrv: str | None = option(
        "Nameserver addresses (host:port), separated by semicolons.", "-n", "--namesrv", default=None, form=NAMESRV
    )
    archive: str | Path | None = option(
        "Read this archive instead of brokers: a directory or a URL.", default=None, form=OLD_PLACE
    )
    store: str | Path | None = option(
        "Read the files of this store instead of brokers: a directory, or the URL of a copy or backup.",
        default=None,
        form=OLD_PLACE,
    )
    broker_name: str = option("Name of the store's broker in the report (with --store).", default="")
    begin_ms: int | None = option(
        "Read only messages that were stored at or after this time.", "--since", default=None, form=TIME
    )
    end_ms: int | None = option(
        "Read only messages that were stored before this time.", "--until", default=None, form=TIME
    )
    access: Mapping[str, str] = option("Credentials and TLS", default={}, form=ACCESS, secret=True)
    storage: Mapping[str, str] = option(STORAGE_HELP, default={}, form=STORAGE_SETTINGS, secret=True)

    @classmethod
    def of_command(cls, **said: Any) -> MessageSource:
        """Create the source for a command. An archive or a store overrides the nameservers, which have a default value
        in commands.
        """
        if said["archive"] is not None or said["store"] is not None:
            said["namesrv"] = None
        return cls(**{name: value for name, value in said.items() if value is not None})

    def check(self, topics: Sequence[str]) -> None:
        """Check the source and the topic names.

        :raises OptionError: a name is invalid, no topic is given, or the source is missing.
        """
        self._demand_one_place()
        demand_forward("begin_ms", self.begin_ms, "end_ms", self.end_ms)
        parse_options({"namesrvAddr": "127.0.0.1:9876", **self._options(topics)})

    def _demand_one_place(self) -> None:
        if [self.namesrv, self.archive, self.store].count(None) != 2:
            raise OptionError(
                "the source to read is missing", next_step="set exactly one of nameservers, archive and store"
            )
        if self.broker_name and self.store is None:
            raise OptionError(
                "the broker name can only be set when reading a store",
                next_step="omit it; brokers and archives already supply the name",
            )
        if self.access and self.namesrv is None:
            raise OptionError(
                f"{self} is read from files, without credentials or TLS",
                next_step="omit them; they apply only to nameservers",
            )

    def read(self, spark: SparkSession, topics: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """Return the messages in the source, with the given columns.

        :raises OptionError: see :meth:`check`.
        """
        from pyspark.sql import functions as f

        self.check(topics)
        if self.archive is None:
            options, kind = self._options(topics), "rocketmq"
            if self.store is not None:
                options |= {"path": str(self.store), "brokerName": self.broker_name}
                options |= storage_options(self.store, self.storage, spark=spark)
                kind = "rocketmq_store"
            schema = ", ".join(f"{name} {BY_NAME[name].type}" for name in columns)
            return spark.read.format(kind).options(**options).schema(schema).load()
        rows = read_archive(spark, self.archive, self.storage).where(f.col("topic").isin(list(topics)))
        if self.begin_ms is not None:
            rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(self.begin_ms)))
        if self.end_ms is not None:
            rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(self.end_ms)))
        return rows.select(*columns)

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        """Return every queue of the given topics, including empty queues.

        :raises OptionError: see :meth:`check`; or a topic does not exist.
        """
        self.check(topics)
        if self.namesrv is not None:
            found = Cluster(parse_options(self._options(topics))).queues()
        else:
            found = self._queues_in_files()
        demand_present(
            topics,
            (queue.topic for queue in found),
            f"{self} has no topic",
            next_step="cometmq topic list shows a cluster's topics; an archive's directories are named after its "
            "topics",
            known=lambda: self.topics(""),
        )
        return sorted(queue for queue in found if queue.topic in topics)

    def open_archive(self) -> ArchiveLog:
        """Open the archive."""
        assert self.archive is not None, "check() was called"
        return ArchiveLog(self.archive, storage=self.storage)

    def topics(self, prefix: str) -> list[str]:
        """Return the topics whose names begin with ``prefix``, sorted.

        :raises CometMQError: no nameserver answers.
        :raises OptionError: the source is missing, or the store has no consume queues.
        """
        self._demand_one_place()
        if self.namesrv is not None:
            names = set(asyncio.run(_topics_of(self.namesrv, self.security())))
        else:
            names = {queue.topic for queue in self._queues_in_files()}
        return sorted(name for name in names if name.startswith(prefix))

    def readable(self, topics: Sequence[str]) -> set[str]:
        """Return the given topics that are readable. In files, all topics are readable.

        :raises OptionError: see :meth:`check`.
        :raises CometMQError: servers do not answer.
        """
        if self.namesrv is None or not topics:
            return set(topics)
        return {queue.topic for queue in Cluster(parse_options(self._options(topics))).queues()}

    def _queues_in_files(self) -> list[Queue]:
        if self.archive is not None:
            return [of.queue for of in self.open_archive().queues()]
        queues = self.open_queues()
        if not queues.present:
            raise OptionError(
                f"the store {self.store} has no consume queues, which list its topics",
                next_step="create them in a copy of it: cometmq pipeline rebuild --store DIR",
            )
        return [Queue(topic, self.broker_name, queue_id) for topic, queue_id in queues.named()]

    def open_store(self) -> StorePlace:
        """Return the place of the store.

        :raises CometMQError: the store cannot be read.
        """
        from cometmq.spark.store.place import open_store

        assert self.store is not None, "one of the three is given"
        return open_store(self.store, parse_storage(storage_options(self.store, self.storage)))

    def open_queues(self) -> ConsumeQueues:
        """Return the consume queues of the store.

        :raises CometMQError: the store cannot be read.
        """
        from cometmq.spark.store.queues import ConsumeQueues

        return ConsumeQueues(self.open_store())

    def __str__(self) -> str:
        """Return the source's name for a report."""
        return self.namesrv or str(self.archive or self.store)

    def servers(self) -> dict[str, str]:
        """Return the options for connections to the source's brokers.

        :raises OptionError: the options for credentials and TLS are invalid.
        """
        assert self.namesrv is not None, "files are read without servers"
        return server_options(self.namesrv, self.access)

    def security(self) -> Security:
        """Return the credentials and TLS for this process's connections to the brokers.

        :raises OptionError: see :meth:`servers`.
        :raises CometMQError: a file or variable that the options name is missing.
        """
        return security_of(self.servers())

    def _options(self, topics: Sequence[str]) -> dict[str, str]:
        options = {"subscribe": ",".join(topics)}
        if self.namesrv is not None:
            options |= self.servers()
        if self.begin_ms is not None:
            options["startingTimestamp"] = str(self.begin_ms)
        if self.end_ms is not None:
            options["endingTimestamp"] = str(self.end_ms)
        return options


async def _topics_of(namesrv: str, security: Security) -> list[str]:
    async with Admin(namesrv, security=security) as admin:
        return await admin.topics()


_PLACE: Final = ["topic", "brokerName", "queueId"]


def rows_in(frame: DataFrame, ranges: Iterable[OffsetRange], *, progress: str | None = None) -> DataFrame:
    """Return the rows within the given ranges, which must not overlap. The order within partitions is preserved.

    The ranges are joined as a small table. With a condition for each queue instead, Spark's planner would run out of
    stack at about a thousand queues.

    :param progress: name of an additional column: the share of the range that precedes a row, from 0 to 1.
    """
    from pyspark.sql import functions as f

    table = [(*part.queue, part.first, part.end) for part in ranges]
    wanted = frame.sparkSession.createDataFrame(
        table, "topic string, brokerName string, queueId int, rangeFirst bigint, rangeEnd bigint"
    )
    if table:  # no scan of files knows the table: by these bounds it passes over what no range can hold
        first, end = min(row[-2] for row in table), max(row[-1] for row in table)
        frame = frame.where((f.col("queueOffset") >= first) & (f.col("queueOffset") < end))
    found = frame.join(f.broadcast(wanted), _PLACE).where("queueOffset >= rangeFirst AND queueOffset < rangeEnd")
    if progress is None:
        return found.select(*frame.columns)
    passed = f.expr("(queueOffset - rangeFirst) / (rangeEnd - rangeFirst)")
    return found.select(*frame.columns, passed.alias(progress))


_LATEST: Final = -1
"""The end of a queue as an offset option. A read that starts there returns nothing."""


def bounds_of(source: MessageSource, topics: Sequence[str]) -> dict[Queue, Bounds]:
    """Return the current offsets of each queue in the given topics.

    :raises OptionError: a topic does not exist.
    :raises UnreachableError: a broker does not answer.
    """
    queues = source.queues(topics)
    if source.namesrv is not None:
        return Cluster(parse_options({**source.servers(), "topic": ",".join(topics)})).bounds(queues)
    if source.archive is not None:
        totals = {of.queue: Bounds(of.first, of.next) for of in source.open_archive().queues()}
        return {queue: totals[queue] for queue in queues}
    files = source.open_queues()
    found = {}
    for queue in queues:
        units = files.units(queue.topic, queue.queue_id)
        found[queue] = Bounds(0, 0) if units is None else Bounds(*units.bounds())
    return found


def other_queues(source: MessageSource, marks: Mapping[Queue, Mark]) -> list[Queue]:
    """Return the queues that have been recreated since their marks were taken. Missing queues are ignored.

    :raises UnreachableError: no nameserver answers.
    """
    topics = sorted({queue.topic for queue in marks})
    if source.namesrv is not None:
        if not topics:
            return []
        return list(Cluster(parse_options({**source.servers(), "topic": ",".join(topics)})).changed_queues(marks))
    if source.archive is not None:
        log = source.open_archive()
        return differing(marks, log.marks_at({queue: mark.offset for queue, mark in marks.items()}))
    files = source.open_queues()
    known = {queue: files.units(queue.topic, queue.queue_id) for queue in marks}
    return [queue for queue, units in known.items() if units is not None and units.has_other(marks[queue])]


def read_ranges(
    spark: SparkSession, source: MessageSource, ranges: Sequence[OffsetRange], columns: Sequence[str]
) -> DataFrame:
    """Return the messages in the given ranges. The source's time limits are ignored.

    Within a Spark partition, the messages of a queue are in the order of their offsets. A queue may be spread over
    several partitions, and a partition may contain several queues.
    """
    topics = sorted({part.queue.topic for part in ranges})
    if source.namesrv is not None:
        ends = {part.queue: part.end for part in ranges}
        firsts = {part.queue: part.first for part in ranges}
        for queue in Cluster(parse_options({**source.servers(), "topic": ",".join(topics)})).queues():
            firsts.setdefault(queue, ends.setdefault(queue, _LATEST))
        return (
            spark.read.format("rocketmq")
            .options(**source.servers(), subscribe=",".join(topics))
            .option("startingOffsets", _text(firsts))
            .option("endingOffsets", _text(ends))
            .schema(", ".join(f"{name} {BY_NAME[name].type}" for name in columns))
            .load()
        )
    if source.archive is not None:
        log = source.open_archive()
        wanted = {part.queue: part for part in ranges}
        files = [
            file
            for file in log.files()
            if (part := wanted.get(file.queue)) is not None and file.first < part.end and part.first < file.end
        ]
        frame = read_files(spark, log, files)
        return rows_in(frame, ranges).select(*columns)
    return rows_in(replace(source, begin_ms=None, end_ms=None).read(spark, topics, columns), ranges)


def _text(offsets: Offsets) -> str:
    return json.dumps(offsets_to_json(offsets))
