"""Archives as Delta and Iceberg tables beside Spark's own Kafka source that writes the same tables.

``python -m benchmarks.spark.tables --formats delta,iceberg --places disk,s3 --messages 600000 --rounds 3``

Kafka's side is a stream from Apache Kafka 3.9.1 into the table, by the jars of its Spark: the newest for which the
table's jars exist (:data:`TABLES`), in a plain session. *Stream* is CometMQ's source in its place, in the same session
and with the same sink; CometMQ needs Spark 4.2, so there is none for Iceberg. The others are CometMQ's archive job from
its broker and from the broker's store, in this Python's Spark. All run on the same bodies in as many queues, each first
in turn, into new tables, and round 0 is not counted. Rows are counted in the files. Kafka's tables have the seven
columns of its source, those of CometMQ's source its 21, and the others all columns of an archive. An S3 server is
SeaweedFS on the same machine, with the checkpoints on the disk; Iceberg is written to the disk only, since its catalog
of files needs renames.

The processor time is that of all processes of a side, with its broker and without the S3 server.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyspark
from benchmarks.clients.kafka_broker import KafkaBroker
from benchmarks.lake import SERVER, stored_files
from benchmarks.machine import Beside, CpuTimes, look_before, verdict
from benchmarks.rounds import in_turn, medians, say, table
from benchmarks.spark.cpu_meter import CpuMeter, descendants
from benchmarks.spark.session import write_source
from benchmarks.spark.sides import MASTER, CometSide, keep_byte_code
from tests.interop import builds
from tests.storage.servers.seaweed import S3Server, seaweed

from cometmq.spark import archive, archive_store, local_session
from cometmq.spark.archives.table import TableFormat
from cometmq.storage import StorageOptions, open_storage

HERE: Final = Path(__file__).parent
POM: Final = HERE / "tables.xml"
QUEUES: Final = 8
KAFKA: Final = "Kafka"
STREAM: Final = "stream"
SIDES: Final = (KAFKA, STREAM, "broker", "store")


@dataclass(frozen=True)
class Table:
    """A format, and the newest Spark that writes it with the jars of its makers."""

    spark: str
    hadoop: str
    jar: str
    conf: Mapping[str, str]
    sides: Sequence[str] = SIDES


TABLES: Final = {
    "delta": Table(
        "4.2.0",
        "3.5.0",
        "io.delta:delta-spark_2.13:4.4.0",
        {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        },
    ),
    "iceberg": Table(
        "4.1.1",
        "3.4.2",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        {"spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog", "spark.sql.catalog.lake.type": "hadoop"},
        tuple(side for side in SIDES if side != STREAM),
    ),
}
"""On Spark 4.3, Delta 4.4.0 ends with NoSuchMethodError (``LogicalRDD.<init>``), and Iceberg 1.12.0, as on 4.2, with
IncompatibleClassChangeError (``SparkView can not implement View``)."""


def python_of(wanted: Table) -> Path:
    """A Python with that version of PySpark, made once."""

    def make(target: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", target / "venv"], check=True)
        subprocess.run([target / "venv/bin/pip", "install", "-q", f"pyspark=={wanted.spark}"], check=True)

    venv = builds.built(builds.Build(f"pyspark-{wanted.spark}", (), make)) / "venv"
    [packages] = venv.glob("lib/python*/site-packages")
    # behind that PySpark, what CometMQ's source needs
    (packages / "benchmark.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return venv / "bin/python"


def class_path(wanted: Table, python: Path) -> str:
    """The table's and Kafka's jars with what they need, without what that Spark has itself."""
    group, artifact, version = wanted.jar.split(":")
    properties = {
        "spark.version": wanted.spark,
        "hadoop.version": wanted.hadoop,
        "table.group": group,
        "table.artifact": artifact,
        "table.version": version,
    }

    def make(target: Path) -> None:
        given = [f"-D{name}={value}" for name, value in (properties | {"outputDirectory": str(target)}).items()]
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
        subprocess.run([builds.tool("mvn"), "-q", "-B", "-f", POM, *given, goal], check=True)

    jars = builds.built(builds.Build(f"{artifact}-{version}", (POM,), make)).glob("*.jar")
    [known] = python.parents[1].glob("lib/python*/site-packages/pyspark/jars")

    def names(paths: Iterator[Path]) -> dict[str, Path]:
        return {re.sub(r"-\d[^/]*\.jar$", "", path.name): path for path in paths}

    own = names(known.iterdir())
    return ":".join(str(path) for name, path in sorted(names(jars).items()) if name not in own)


class KafkaTables:
    """The process of Kafka's side, and of CometMQ's source in its place."""

    def __init__(self, format_name: str, given: Mapping[str, Any]) -> None:
        self._format = format_name
        wanted = TABLES[format_name]
        python = python_of(wanted)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        environment |= {"PYTHONPATH": str(HERE.parents[1] / "src"), "PYSPARK_PYTHON": str(python)}
        environment["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {class_path(wanted, python)} pyspark-shell"
        command = [str(python), str(HERE / "kafka_table.py"), json.dumps(given)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self._wait("ready")

    def create(self, source: str, path: str, checkpoint: Path) -> None:
        """Make the next table."""
        self._send({"source": source, "format": self._format, "path": path, "checkpoint": str(checkpoint)})
        self._wait("created")

    def write(self) -> None:
        """Write all of the source's topic into it."""
        self._send({})
        self._wait("done")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _send(self, wanted: Mapping[str, str]) -> None:
        assert self._process.stdin is not None
        print(json.dumps(wanted), file=self._process.stdin, flush=True)

    def _wait(self, word: str) -> None:
        assert self._process.stdout is not None
        if (said := self._process.stdout.readline().strip()) != word:
            raise RuntimeError(f"Spark said {said!r}, not {word!r}")


@dataclass(frozen=True)
class Tables:
    """The parts that all runs of one format share."""

    format: str
    spark: Any
    place: Path
    kafka: KafkaTables
    comet: CometSide
    topic: str
    s3: StorageOptions
    meter: CpuMeter

    def run(self, side: str, where: str, name: str) -> dict[str, float]:
        """Write all messages into a new table; return the figures."""
        path, options = (str(self.place / name), None) if where == "disk" else (f"s3://lake/{name}", self.s3)
        checkpoint = self.place / f"{name}-checkpoint"
        if side in (KAFKA, STREAM):
            self.kafka.create("kafka" if side == KAFKA else "rocketmq", path.replace("s3://", "s3a://"), checkpoint)
        os.sync()
        cpu, began = self.meter.seconds(), time.perf_counter()
        if side in (KAFKA, STREAM):
            self.kafka.write()
        else:
            self._archive(side, path, options)
        seconds = time.perf_counter() - began
        spent = {kind: now - cpu.get(kind, 0.0) for kind, now in self.meter.seconds().items()}
        server = spent.pop(SERVER, 0.0)
        stored = open_storage(path, options)
        figures = stored_files(stored)
        stored.delete([found.key for found in stored.list_objects("")])
        shutil.rmtree(checkpoint, ignore_errors=True)
        return {"seconds": seconds, "cpu_s": sum(spent.values()), "server_cpu_s": server} | figures

    def _archive(self, side: str, path: str, options: StorageOptions | None) -> None:
        given: dict[str, Any] = {"spark": self.spark, "table_format": TableFormat(self.format)}
        given["storage"] = options.texts() if options else None
        if side == "store":
            archive_store(self.comet.store, path, broker_name="broker-a", topics=self.topic, **given)
        else:
            archive(self.comet.deployment.address, self.topic, path, **given)


def conf_of(format_name: str, place: Path, server: S3Server) -> dict[str, str]:
    """The settings of Kafka's session."""
    s3 = {
        "endpoint": server.endpoint,
        "endpoint.region": server.options.region,
        "access.key": server.options.access_key_id,
        "secret.key": server.options.secret_access_key,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }
    conf = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3.items()}
    conf["spark.sql.catalog.lake.warehouse"] = str(place)
    return conf | {"spark.ui.enabled": "false"} | dict(TABLES[format_name].conf)


@contextmanager
def opened(format_name: str, comet: CometSide, topic: str, server: S3Server, place: Path) -> Iterator[Tables]:
    """Start Kafka and both Sparks, with Kafka's topic filled."""
    with ExitStack() as stack:
        kafka = KafkaBroker(place / f"kafka-{format_name}")
        stack.callback(kafka.stop)
        given: dict[str, Any] = {"conf": conf_of(format_name, place, server)}
        given |= {"address": kafka.address, "topic": "bench"}
        given["comet"] = {"namesrvAddr": comet.deployment.address, "topic": topic}
        kafka_side = KafkaTables(format_name, given | {"queues": QUEUES, "source": str(place / "source")})
        stack.callback(kafka_side.close)
        spark = local_session(MASTER, "benchmark")
        stack.callback(spark.stop)
        meter = CpuMeter()
        meter.brokers |= dict.fromkeys((*comet.pids, kafka.pid), "broker")
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in descendants()}
        meter.brokers |= {pid: SERVER for pid, name in names.items() if name.startswith("weed")}
        meter.watch()
        yield Tables(format_name, spark, place, kafka_side, comet, topic, server.options, meter)


def report(found: Mapping[tuple[str, str, str], Sequence[Mapping[str, float]]]) -> str:
    """The table of docs/performance.md."""
    rows: list[tuple[str, ...]] = [
        ("table", "written by", "rows/s", "ratio", "CPU per million rows", "of the S3 server", "size")
    ]
    for (format_name, where, side), runs in found.items():
        one, kafka = medians(runs), medians(found[format_name, where, KAFKA])
        titles = {KAFKA: "Kafka's source", STREAM: "CometMQ's source"}
        title = f"{titles[side]}, Spark {TABLES[format_name].spark}" if side in titles else f"archive from a {side}"
        million = 1e6 / one["rows"]
        cpu = f"{one['cpu_s'] * million:.1f} s"
        server = "–" if where == "disk" else f"{one['server_cpu_s'] * million:.1f} s"
        ratio, rate = kafka["seconds"] / one["seconds"], one["rows"] / one["seconds"] / 1000
        rows.append(
            (f"{format_name}, {where}", title, f"{rate:,.0f} k", f"{ratio:.2f} ×", cpu, server, f"{one['mb']:,.0f} MB")
        )
    return table(*rows)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(TABLES), help=f"some of {','.join(TABLES)}")
    parser.add_argument("--places", default="disk", help="some of disk,s3")
    parser.add_argument("--messages", type=int, default=600_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--random", type=int, default=1024, help="bytes of each body that do not compress")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    keep_byte_code()
    load, before = os.getloadavg()[0], look_before()
    beside: list[Beside] = []
    found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="cometmq-tables-")))
        write_source(place / "source", given.messages, given.size, given.random)
        (place / "weed").mkdir()
        server = stack.enter_context(seaweed(place / "weed"))
        comet = CometSide(place / "cometmq")
        stack.callback(comet.close)
        topic = comet.create(QUEUES)
        comet.fill(None, place / "source", topic)
        for format_name in given.formats.split(","):
            with opened(format_name, comet, topic, server, place) as tables:
                for where in given.places.split(",") if format_name == "delta" else ["disk"]:
                    sides = TABLES[format_name].sides
                    for number, side in [(0, side) for side in sides] + list(in_turn(sides, given.rounds)):
                        begin = CpuTimes.now()
                        figures = tables.run(side, where, f"{format_name}-{where}-{number}-{side}")
                        if figures["rows"] != given.messages:
                            raise SystemExit(f"{side} wrote {figures['rows']} rows, not {given.messages}")
                        say(table=format_name, place=where, side=side, round=number, **figures)
                        if number:
                            cpu = figures["cpu_s"] + figures["server_cpu_s"]
                            beside.append(Beside.between(begin, CpuTimes.now(), cpu))
                            found.setdefault((format_name, where, side), []).append(figures)
    print(report(found))
    print(
        f"\n{given.messages:,} messages of {given.size:,} bytes, {given.random:,} of them random, in {QUEUES} queues;"
    )
    print(f"CometMQ's side on Spark {pyspark.__version__}. {verdict(load, before, beside)}")


if __name__ == "__main__":
    main()
