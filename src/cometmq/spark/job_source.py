"""What the jobs that look into messages share: where messages come from, the session, and errors in our words."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.client.admin import Admin
from cometmq.remoting.security import Security
from cometmq.spark.archive import cause_of
from cometmq.spark.archive_log import ArchiveLog
from cometmq.spark.archive_reader import read_archive
from cometmq.spark.cluster import Cluster
from cometmq.spark.columns import BY_NAME
from cometmq.spark.environment import driver_session, tasks_at_a_time
from cometmq.spark.errors import OptionError, SparkSourceError
from cometmq.spark.missing_topics import demand_present
from cometmq.spark.options import parse_options
from cometmq.spark.queues import Queue
from cometmq.spark.reach import reach, security_of
from cometmq.spark.store_files import ConsumeQueues

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_TASKS_PER_CORE: Final = 2
_LEAST_TASKS: Final = 4
"""Of one shuffle; Spark's own 200 are for clusters, and on two cores cost more than a small topic itself."""


@dataclass(frozen=True, slots=True)
class MessageSource:
    """Where a job reads: from brokers, from an archive of :mod:`cometmq.spark.archive`, or from the files of a store.

    Exactly one of the three is given.
    """

    namesrv: str | None = None
    archive: Path | None = None
    store: Path | None = None
    """Directory that holds ``commitlog/``."""
    broker_name: str = ""
    """Whose store that is, which none of its files says."""
    begin_ms: int | None = None
    """Only messages stored at this time or later, ms since 1970 …"""
    end_ms: int | None = None
    """… and before this one."""
    access: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    """How brokers are reached: credentials and TLS, by the options of the source; what they leave open the
    environment says."""

    def check(self, topics: Sequence[str]) -> None:
        """Demand that these topics can be asked for.

        :raises OptionError: a name is not allowed, none is given, or it is not said where to read.
        """
        self._demand_one_place()
        parse_options({"namesrvAddr": "127.0.0.1:9876", **self._options(topics)})

    def _demand_one_place(self) -> None:
        if [self.namesrv, self.archive, self.store].count(None) != 2:
            raise OptionError("say where to read", next_step="give nameservers, an archive or a store, and only one")
        if self.access and self.namesrv is None:
            raise OptionError(f"{self} is read from files", next_step="credentials and TLS are for nameservers")

    def read(self, spark: SparkSession, topics: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """The messages, with these columns of the source.

        :raises OptionError: as :meth:`check`.
        """
        from pyspark.sql import functions as f

        self.check(topics)
        if self.archive is None:
            options, kind = self._options(topics), "rocketmq"
            if self.store is not None:
                options |= {"path": str(self.store.absolute()), "brokerName": self.broker_name}
                kind = "rocketmq_store"
            schema = ", ".join(f"{name} {BY_NAME[name].type}" for name in columns)
            return spark.read.format(kind).options(**options).schema(schema).load()
        rows = read_archive(spark, self.archive).where(f.col("topic").isin(list(topics)))
        if self.begin_ms is not None:
            rows = rows.where(f.col("storeTimestamp") >= f.timestamp_millis(f.lit(self.begin_ms)))
        if self.end_ms is not None:
            rows = rows.where(f.col("storeTimestamp") < f.timestamp_millis(f.lit(self.end_ms)))
        return rows.select(*columns)

    def queues(self, topics: Sequence[str]) -> list[Queue]:
        """Every queue of these topics, also those that hold nothing.

        :raises OptionError: as :meth:`check`, or a topic is not there.
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
            next_step="cometmq topic list shows the topics of a cluster, an archive names them in its directories",
            known=lambda: self.topics(""),
        )
        return sorted(queue for queue in found if queue.topic in topics)

    def topics(self, prefix: str) -> list[str]:
        """The topics whose names begin with ``prefix``, sorted.

        :raises CometMQError: no nameserver answers.
        :raises OptionError: it is not said where to read, or the store does not say.
        """
        self._demand_one_place()
        if self.namesrv is not None:
            names = set(asyncio.run(_topics_of(self.namesrv, self.security())))
        else:
            names = {queue.topic for queue in self._queues_in_files()}
        return sorted(name for name in names if name.startswith(prefix))

    def _queues_in_files(self) -> list[Queue]:
        if self.archive is not None:
            return [Queue(of.topic, of.broker, of.queue_id) for of in ArchiveLog(self.archive).queues()]
        assert self.store is not None, "one of the three is given"
        queues = ConsumeQueues(self.store)
        if not queues.present:
            raise OptionError(
                f"the store {self.store} has no consume queues, which say what topics it has",
                next_step="make them in a copy of it: cometmq pipeline rebuild --store DIR",
            )
        return [Queue(topic, self.broker_name, queue_id) for topic, queue_id in queues.named()]

    def __str__(self) -> str:
        """Where it reads, for a report."""
        return self.namesrv or str(self.archive or self.store)

    def servers(self) -> dict[str, str]:
        """Options that reach the brokers, of a source that is not read from files.

        :raises OptionError: the options for credentials and TLS are wrong.
        """
        assert self.namesrv is not None, "files are read without servers"
        return reach(self.namesrv, self.access)

    def security(self) -> Security:
        """What connections of this process to the brokers are to use.

        :raises OptionError: as :meth:`servers`.
        :raises CometMQError: files or variables that they name are not here.
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


@contextmanager
def job_session(spark: SparkSession | None, master: str, name: str) -> Iterator[SparkSession]:
    """The session that was given, or a new one on ``master`` that is stopped at the end.

    :raises SparkSourceError: what went wrong in Spark within the block, in one sentence.
    """
    with driver_session(spark, master, name) as session:
        if spark is None:
            tasks = max(_LEAST_TASKS, tasks_at_a_time(session) * _TASKS_PER_CORE)
            session.conf.set("spark.sql.shuffle.partitions", str(tasks))
        from pyspark.errors import PySparkException

        try:
            yield session
        except PySparkException as error:
            raise SparkSourceError(cause_of(str(error))) from error


def new_directory(directory: str | Path | None) -> Path | None:
    """Where a job may write a table: nothing that is there already is ever replaced.

    :raises OptionError: it is there.
    """
    place = None if directory is None else Path(directory).absolute()
    if place is not None and place.exists():
        raise OptionError(f"{place} is there already", next_step="name a directory that is not")
    return place


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep a frame on the executors' disks while it is used more than once."""
    from pyspark import StorageLevel

    frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()
