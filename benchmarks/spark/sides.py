"""The two systems that benchmarks/spark compares: each with its broker, its topics and its connector in one Spark.

Kafka runs as one JVM in KRaft mode (1 GB heap), CometMQ as a nameserver and a broker; both are started on fresh
directories and stopped again. Kafka's jars come from Maven Central by package name, once, into the cache of the
interop tests.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.parquet as pq
from benchmarks.clients.kafka_broker import KafkaBroker, kafka_jars
from benchmarks.spark.constants import FORMAT, Constants, keep
from tests.interop.systems import System, deploy
from tests.spark.topics import Topics

from cometmq.client import Message, Producer
from cometmq.remoting.blocking import BlockingConnection
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.spark.records.columns import default_ddl
from cometmq.spark.records.queues import OffsetRange
from cometmq.spark.session.environment import local_session
from cometmq.spark.source.cluster import Cluster
from cometmq.spark.source.options import parse_options
from cometmq.spark.source.reader import read_ranges

CONNECTOR_JARS: Final = ("spark-sql-kafka-*", "spark-token-provider-kafka-*", "kafka-clients-*", "commons-pool2-*")
MASTER: Final = "local[2]"
FILL_BLOCK: Final = 10_000
CONSTANT_ROWS: Final = 100_000
"""Rows of the source of constants, which it repeats: more than Parquet's dictionaries hold, as those of a topic."""


class Side(Protocol):
    """One system as the cases see it."""

    name: str
    place: str
    """Names of the columns for a message's queue, offset and time."""

    @property
    def pids(self) -> Sequence[int]:
        """The processes of its brokers."""

    def create(self, queues: int) -> str:
        """A new topic."""

    def delete(self, topic: str) -> None:
        """Have its files deleted where that is possible."""

    def stored(self, topic: str) -> int:
        """Messages that the broker has in a topic."""

    def fill(self, spark: Any, source: Path, topic: str) -> None:
        """Send the rows of Parquet files through the system's producer, message by message."""

    def write(self, frame: Any, topic: str) -> None:
        """Write rows of ``body``, ``tags`` and ``keys`` to a topic, every message acknowledged."""

    def read(self, spark: Any, topic: str, *, columns: bool = True) -> Any:
        """A topic as a DataFrame, with all columns or only queue, offset and time."""

    def stream(self, spark: Any, topic: str, most: int | None, *, latest: bool = False, seven: bool = False) -> Any:
        """A topic as a stream of all columns, or of those that Kafka's connector has, by batches of so many at most."""

    def send(self, topic: str, queue_id: int) -> None:
        """One small message, stored when this returns."""

    def close(self) -> None:
        """Stop the broker."""


class CometSide:
    """CometMQ and its source and sink."""

    name = "CometMQ"
    place = "queueId int, queueOffset bigint, storeTimestamp timestamp"
    seven = f"keys string, body binary, topic string, {place}, sysFlag int"
    """The columns of Kafka's connector: key, value, topic, partition, offset, time and a flag."""

    def __init__(self, directory: Path) -> None:
        self.deployment = deploy(System.COMETMQ, directory)
        self.topics = Topics(self.deployment.address, self.deployment.broker.address)
        self.store = directory / "broker" / "store"

    @property
    def pids(self) -> Sequence[int]:
        """The processes of nameserver and broker."""
        return self.deployment.namesrv.pid, self.deployment.broker.pid

    def create(self, queues: int) -> str:
        """A new topic."""
        return self.topics.create(queues)

    def delete(self, topic: str) -> None:
        """Delete the full files of the log of all topics, so that both systems write into memory that was in use.

        A virtual machine pays for each page that it uses for the first time: a write into such memory is ten times as
        slow, and only the system that frees nothing would pay.
        """
        del topic
        with BlockingConnection(self.deployment.broker.address) as connection:
            for code, body in (
                (RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=0"),
                (RequestCode.DELETE_EXPIRED_COMMITLOG, b""),
                (RequestCode.UPDATE_BROKER_CONFIG, b"fileReservedTime=72"),
            ):
                assert connection.invoke(code, body=body).code == ResponseCode.SUCCESS

    def fill(self, spark: Any, source: Path, topic: str) -> None:
        """Send rows one by one, to the queues in turn, as many at once as the client has in flight unasked."""
        del spark
        asyncio.run(self._fill(source, topic))

    async def _fill(self, source: Path, topic: str) -> None:
        async with Producer("benchmark", self.deployment.address) as producer:
            for path in sorted(source.glob("*.parquet")):
                for block in pq.ParquetFile(path).iter_batches(FILL_BLOCK):
                    rows = zip(*(block.column(name).to_pylist() for name in ("body", "tags", "keys")), strict=True)
                    await producer.send_many([Message(topic, body, tags=tag, keys=key) for body, tag, key in rows])

    def stored(self, topic: str) -> int:
        """Messages that the broker has in a topic."""
        cluster = Cluster(parse_options({"namesrvAddr": self.deployment.address, "topic": topic}))
        return sum(held.end - held.first for held in cluster.bounds(cluster.queues()).values())

    def write(self, frame: Any, topic: str, guarantee: str = "at-least-once") -> None:
        """Write rows to a topic with a guarantee."""
        writer = frame.write.format("rocketmq").mode("append").option("deliveryGuarantee", guarantee)
        writer.options(namesrvAddr=self.deployment.address, topic=topic).save()

    def read(self, spark: Any, topic: str, *, columns: bool = True) -> Any:
        """A topic as a DataFrame; a schema is what projects."""
        reader = spark.read.format("rocketmq").options(namesrvAddr=self.deployment.address, topic=topic)
        return (reader if columns else reader.schema(self.place)).load()

    def stream(self, spark: Any, topic: str, most: int | None, *, latest: bool = False, seven: bool = False) -> Any:
        """A topic as a stream."""
        reader = spark.readStream.format("rocketmq").options(namesrvAddr=self.deployment.address, topic=topic)
        reader = reader.schema(self.seven) if seven else reader
        reader = reader.option("startingOffsets", "latest" if latest else "earliest")
        return (reader if most is None else reader.option("maxOffsetsPerTrigger", most)).load()

    def send(self, topic: str, queue_id: int) -> None:
        """One small message."""
        self.topics.send(topic, queue_id, [b"x"])

    def close(self) -> None:
        """Stop nameserver and broker."""
        self.deployment.close()


class ConstantsSide:
    """A source of rows that are ready, and a sink that drops them: the limit of Spark's Python sources."""

    name = "constants"
    place = CometSide.place
    pids: Sequence[int] = ()

    def __init__(self, spark: Any, directory: Path, comet: CometSide, topic: str, rows: int) -> None:
        from pyspark.sql.types import StructType

        directory.mkdir()
        self._directory = directory
        self._numbers = 0
        options = parse_options({"namesrvAddr": comet.deployment.address, "topic": topic})
        cluster = Cluster(options)
        ranges = [OffsetRange(queue, of.first, of.end) for queue, of in cluster.bounds(cluster.queues()).items()]
        path = directory / "rows.arrow"
        schema: Any = StructType.fromDDL(default_ddl())
        keep(read_ranges(options, schema, ranges), path, CONSTANT_ROWS)
        # as our source counts them, for the same number of tasks
        row_bytes = sum(piece.size for piece in cluster.sized_ranges(ranges)) / sum(map(len, ranges))
        self._options = {"path": str(path), "rows": str(rows), "rowBytes": str(row_bytes)}
        spark.dataSource.register(Constants)

    def create(self, queues: int) -> str:
        """A file for the number of dropped rows."""
        del queues
        self._numbers += 1
        return str(self._directory / f"dropped-{self._numbers}")

    def delete(self, topic: str) -> None:
        """Delete the file."""
        Path(topic).unlink()

    def fill(self, spark: Any, source: Path, topic: str) -> None:
        """The rows are ready."""

    def stored(self, topic: str) -> int:
        """Rows that were dropped."""
        return int(Path(topic).read_text("ascii"))

    def write(self, frame: Any, topic: str) -> None:
        """Drop rows."""
        frame.write.format(FORMAT).mode("append").option("path", topic).save()

    def read(self, spark: Any, topic: str, *, columns: bool = True) -> Any:
        """The rows as a DataFrame."""
        del topic
        reader = spark.read.format(FORMAT).options(**self._options)
        return (reader if columns else reader.schema(self.place)).load()

    def stream(self, spark: Any, topic: str, most: int | None, *, latest: bool = False, seven: bool = False) -> Any:
        """The rows as a stream."""
        del topic, latest
        reader = spark.readStream.format(FORMAT).options(**self._options)
        reader = reader.schema(CometSide.seven) if seven else reader
        return (reader if most is None else reader.option("most", most)).load()

    def send(self, topic: str, queue_id: int) -> None:
        """There is no broker."""

    def close(self) -> None:
        """There is no broker."""


def connector_class_path() -> str:
    """The settings that Spark's JVM needs for Kafka."""
    return ":".join(str(jar) for pattern in CONNECTOR_JARS for jar in sorted(kafka_jars().glob(pattern)))


class KafkaSide:
    """Apache Kafka and Spark's own connector; topics are made and asked through the Java client in Spark's JVM."""

    name = "Kafka"
    place = "partition, offset, timestamp"

    def __init__(self, directory: Path, jvm: Any) -> None:
        self._jvm = jvm
        self._numbers = 0
        self._broker = KafkaBroker(directory)
        self._address = self._broker.address
        client = jvm.java.util.Properties()
        client.setProperty("bootstrap.servers", self._address)
        for role in ("key", "value"):
            for kind in ("serializer", "deserializer"):
                name = f"org.apache.kafka.common.serialization.ByteArray{kind.capitalize()}"
                client.setProperty(f"{role}.{kind}", name)
        clients = jvm.org.apache.kafka.clients
        self._admin = clients.admin.AdminClient.create(client)
        self._producer = clients.producer.KafkaProducer(client)
        self._consumer = clients.consumer.KafkaConsumer(client)

    @property
    def pids(self) -> Sequence[int]:
        """The process of the broker."""
        return (self._broker.pid,)

    def create(self, queues: int) -> str:
        """A new topic."""
        self._numbers += 1
        name = f"bench-{self._numbers}"
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, queues, 1)
        self._admin.createTopics(self._list([new])).all().get()
        return name

    def delete(self, topic: str) -> None:
        """Delete it, files and all."""
        self._admin.deleteTopics(self._list([topic])).all().get()

    def fill(self, spark: Any, source: Path, topic: str) -> None:
        """Let Spark's sink do it: it hands over each row to Kafka's producer, which gathers up to 16 KB unasked."""
        self.write(spark.read.parquet(str(source)), topic)

    def _list(self, items: Sequence[Any]) -> Any:
        found = self._jvm.java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    def stored(self, topic: str) -> int:
        """Messages that the broker has in a topic."""
        kind = self._jvm.org.apache.kafka.common.TopicPartition
        parts = self._list([kind(topic, part.partition()) for part in self._consumer.partitionsFor(topic)])
        first, end = self._consumer.beginningOffsets(parts), self._consumer.endOffsets(parts)
        return int(sum(end.values()) - sum(first.values()))

    def write(self, frame: Any, topic: str) -> None:
        """Write rows to a topic; ``acks=all`` is the client's default."""
        rows = frame.selectExpr("keys AS key", "body AS value")
        rows.write.format("kafka").options(**{"kafka.bootstrap.servers": self._address, "topic": topic}).save()

    def read(self, spark: Any, topic: str, *, columns: bool = True) -> Any:
        """A topic as a DataFrame."""
        reader = spark.read.format("kafka").options(**{"kafka.bootstrap.servers": self._address, "subscribe": topic})
        frame = reader.load()
        return frame if columns else frame.select(*self.place.split(", "))

    def stream(self, spark: Any, topic: str, most: int | None, *, latest: bool = False, seven: bool = False) -> Any:
        """A topic as a stream, which has seven columns."""
        reader = spark.readStream.format("kafka")
        reader = reader.options(**{"kafka.bootstrap.servers": self._address, "subscribe": topic})
        reader = reader.option("startingOffsets", "latest" if latest else "earliest")
        return (reader if most is None else reader.option("maxOffsetsPerTrigger", most)).load()

    def send(self, topic: str, queue_id: int) -> None:
        """One small message."""
        record = self._jvm.org.apache.kafka.clients.producer.ProducerRecord(topic, queue_id, None, b"x")
        self._producer.send(record).get()

    def close(self) -> None:
        """Stop the broker."""
        self._broker.stop()


def keep_byte_code() -> None:
    """Let Spark's processes find byte code, as that of an installed CometMQ: a planner is started for each stream."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def plain_session() -> Any:
    """A session as Spark makes it unasked, but for the Python of its workers, which has to have CometMQ."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master(MASTER).appName("benchmark").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def tuned_session() -> Any:
    """The session of ``cometmq pipeline``."""
    return local_session(MASTER, "benchmark")


SESSIONS: Final[Mapping[str, Callable[[], Any]]] = {"plain": plain_session, "tuned": tuned_session}


def prepare_class_path() -> None:
    """Let the session that is made next know Kafka's connector."""
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {connector_class_path()} pyspark-shell"


def remove(directory: Path) -> None:
    """Remove what a round has written."""
    shutil.rmtree(directory, ignore_errors=True)
