"""Opens sessions for the jobs, in this process or on a Spark Connect server, and checks that Spark can run here."""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import site
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from cometmq.errors import SPARK, SPARK_MODULES, require
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.session.interruption import activate, ends_interrupted, interrupt_at_once, interruption_put_off
from cometmq.spark.session.jvm_stderr import start_jvm
from cometmq.spark.session.lost import demand_running, end_quietly, says_when_lost, stop

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_WORKER_PYTHON: Final = Path(__file__).with_name("worker-python")
CONNECT_SCHEME: Final = "sc://"
"""Prefix of a Spark Connect server's address, which can be used in place of a master."""
_CONNECT_PORT: Final = 15002
"""Default port of a Spark Connect server."""
_MASTER: Final = re.compile(r"local(\[.*\])?$|local-cluster\[|spark://|k8s://|yarn$")
_STANDALONE_SCHEME: Final = "spark://"
_MASTER_PORT: Final = 7077
"""Default port of a standalone master."""
_CONNECT_SECONDS: Final = 10.0
_LOCAL_SHUFFLE_PARTITIONS: Final = 8
"""Number of shuffle partitions. Spark's default of 200 is for clusters. On one machine, each partition takes several
milliseconds, and an audit with 200 partitions took a minute.
"""
_UNIQUE: Final = (
    *("msgId", "uniqKey", "keys", "body", "queueOffset", "physicalOffset", "bodyCrc"),
    "properties.key_value.value",  # each record's UNIQ_KEY is among them
)
"""Columns whose values seldom repeat. Parquet would collect a dictionary of each, and give it up."""
_PARQUET: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    **{f"spark.hadoop.parquet.enable.dictionary#{name}": "false" for name in _UNIQUE},
}
"""Settings of Spark's own Parquet sink. Its default for times, INT96, is deprecated and slow."""
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for a JVM that favours quick compilation and collects garbage in one thread."""
_LASTING: Final = (
    "-XX:InitiatingHeapOccupancyPercent=80 "
    "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
)
"""Options for a JVM that runs longer. Rows are short-lived and never reach the old generation, so G1 need not mark the
heap continuously. Spark checks nulls and bounds before it reads a value, so Arrow need not repeat these checks.
"""


class SparkMissingError(SparkSourceError):
    """Java is not installed or is too old."""


def demand_spark() -> None:
    """Check that a Spark session can start here.

    :raises MissingPackageError: PySpark, or a package that it needs, is not installed.
    :raises SparkMissingError: Java is not installed.
    """
    require("Spark", SPARK, *SPARK_MODULES)
    home = os.environ.get("JAVA_HOME")
    if home and not os.access(_java(), os.X_OK):
        else_here = ", or unset it: there is a java on the PATH" if shutil.which("java") else ""
        raise SparkMissingError(
            f"JAVA_HOME is {home}, which has no bin/java",
            next_step=f"set it to the directory of Java 17 or later{else_here}",
        )
    if not home and shutil.which("java") is None:
        raise SparkMissingError(
            "Spark needs Java 17 or later, but java is not on the PATH and JAVA_HOME is not set",
            next_step="install it, for example with: apt-get install openjdk-17-jre-headless",
        )


def _java() -> str:
    """Return the Java command that Spark starts."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else "java"


@contextmanager
def driver_session(spark: SparkSession | None, master: str, app_name: str) -> Iterator[SparkSession]:
    """Yield the job's session, or a new session on ``master``, which may be a Spark Connect server.

    A new session is stopped at the end of the block.

    :raises MissingPackageError: see :func:`demand_spark`; or a package for Spark Connect is not installed.
    :raises SparkMissingError: see :func:`demand_spark`.
    :raises SparkSourceError: the server does not answer, or Spark does not start on that master.
    """
    if spark is not None:
        demand_running(spark)
        with says_when_lost():
            activate(spark)
            yield spark
        return
    if master.startswith(CONNECT_SCHEME):
        session = connect_session(master)
        try:
            yield session
        finally:
            session.stop()
        return
    with ends_interrupted(), says_when_lost():
        with _start_errors(master):
            _demand_master(master)
            conf = _started(master, app_name)
            from pyspark import SparkContext

            interrupt_at_once()
            with interruption_put_off():  # this also puts off PySpark's own handler
                SparkContext.getOrCreate(conf)
            session = _session(conf)
        try:
            yield session
        finally:
            stop(session)


@contextmanager
def _start_errors(master: str) -> Iterator[None]:
    """If Spark fails to start in the block, raise an error that states the cause in one sentence.

    :raises SparkMissingError: see :func:`demand_spark`.
    :raises SparkSourceError: py4j or PySpark raised an error within the block.
    """
    demand_spark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        if "JAVA_GATEWAY_EXITED" in str(error):
            raise SparkMissingError(
                f"Spark's JVM does not start with {_java()}",
                next_step=f"check that {_java()} -version prints 17 or later; set JAVA_HOME to the directory of "
                "such a Java",
            ) from error
        cause = next((line[2:] for line in str(error).splitlines() if line.startswith(": ")), str(error))
        raise SparkSourceError(
            f"Spark does not start on {master}: {cause}", next_step="check --master, and that the cluster is running"
        ) from error


def _demand_master(master: str) -> None:
    """Check the form of a master address. For a standalone cluster, check that one of its masters is listening.

    Spark itself tries for a minute and then hangs. If the address is malformed, its launcher prints a stack trace.

    :raises SparkSourceError: the address is malformed, or no master is listening.
    """
    if not _MASTER.match(master):
        raise SparkSourceError(
            f"Spark does not start on {master}: invalid master",
            next_step="use local[*], spark://HOST:PORT, k8s://HOST:PORT or yarn; for Connect, use sc://HOST:PORT",
        )
    if not master.startswith(_STANDALONE_SCHEME):
        return
    cause: OSError | ValueError = ValueError("no address")
    for address in master.removeprefix(_STANDALONE_SCHEME).split(","):
        try:
            place = urlsplit(f"//{address}")
            with socket.create_connection((place.hostname or "", place.port or _MASTER_PORT), _CONNECT_SECONDS):
                return
        except (OSError, ValueError) as error:
            cause = error
    reason = cause.strerror or str(cause) if isinstance(cause, OSError) else str(cause)
    raise SparkSourceError(
        f"no Spark master listens at {master}: {reason.lower()}",
        next_step="start one (Spark's start-master.sh), or use another --master, such as local[*]",
    ) from cause


def is_connect(spark: SparkSession) -> bool:
    """Return True for a Spark Connect session, whose driver is another process."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def tasks_at_a_time(spark: SparkSession) -> int:
    """Return the number of tasks that a session can run at the same time."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    from pyspark.sql import functions as f

    # A range has a partition for each task; Connect clients cannot query the number itself.
    return spark.range(1 << 20).select(f.spark_partition_id()).distinct().count()


def connect_session(address: str) -> SparkSession:
    """Open a session on a Spark Connect server. CometMQ must be installed in the server's Python.

    :param address: ``sc://HOST:PORT``, with Spark's parameters.
    :raises MissingPackageError: a package for Spark Connect is not installed.
    :raises SparkSourceError: the server does not answer.
    """
    require("Spark Connect", "connect", *SPARK_MODULES, "grpc", "grpc_status")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    place = urlsplit(address).netloc  # the parameters after the address may contain a token
    _log.info("connecting to Spark at %s", place)
    try:
        _demand_listener(address)
        session = SparkSession.builder.remote(address).getOrCreate()
        session.conf.set("spark.sql.session.timeZone", "UTC")
    except (PySparkException, OSError, ValueError) as error:
        raise SparkSourceError(
            f"no Spark Connect session at {place}: {str(error).strip().splitlines()[0]}",
            next_step="start a server (Spark's start-connect-server.sh), or use another --master",
        ) from error
    return session


def _demand_listener(address: str) -> None:
    """Check that a server is listening. Spark's own client would try for ten minutes.

    :raises OSError: no server is listening.
    :raises ValueError: the address is malformed.
    """
    place = urlsplit(address)
    with socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), _CONNECT_SECONDS):
        pass


def local_session(master: str = "local[*]", app_name: str = "cometmq", *, brief: bool = False) -> SparkSession:
    """Create a session that logs little and whose workers use this Python interpreter.

    :param brief: True for a session that lasts a minute or two and has little data; the JVM then favours quick
        compilation.
    :raises SparkMissingError: see :func:`demand_spark`.
    """
    demand_spark()
    return _session(_started(master, app_name, brief=brief))


def _started(master: str, app_name: str, *, brief: bool = False) -> SparkConf:
    """Start the JVM, and return the configuration for its sessions."""
    from pyspark import SparkConf

    _log.info("starting Spark on %s", master)
    os.environ.setdefault("PYSPARK_PYTHON", _worker_python(master))
    options = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{options} {_BRIEF if brief else _LASTING}")
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app_name)
    if master.startswith("local"):
        conf.set("spark.sql.shuffle.partitions", str(_LOCAL_SHUFFLE_PARTITIONS))
        conf.set("spark.ui.enabled", "false")
    conf.set("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower())
    conf.set("spark.sql.session.timeZone", "UTC")
    conf.set("spark.python.unix.domain.socket.enabled", "true")
    conf.setAll(list(_PARQUET.items()))
    start_jvm(conf)
    return conf


def _worker_python(master: str) -> str:
    """Return the Python command for Spark's workers: this interpreter, started by a script that caches compiled PySpark
    files.
    """
    import pyspark

    places = (*site.getsitepackages(), site.getusersitepackages())
    installed = any(Path(pyspark.__file__).parents[1].samefile(place) for place in places if Path(place).exists())
    runs_here = master.startswith("local") and os.name == "posix" and os.access(_WORKER_PYTHON, os.X_OK)
    if not (installed and runs_here):
        return sys.executable
    os.environ["COMETMQ_WORKER_PYTHON"] = sys.executable
    return str(_WORKER_PYTHON)


def _session(conf: SparkConf) -> SparkSession:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.config(conf=conf).getOrCreate()
    python = os.environ["PYSPARK_PYTHON"]
    if shlex.quote(python) != python:  # Spark asks a shell for it without quotes, and then looks for no formats
        from cometmq.spark.data_source import RocketMQDataSource, RocketMQStoreSource

        session.dataSource.register(RocketMQDataSource)
        session.dataSource.register(RocketMQStoreSource)
    session.sparkContext.setLogLevel("OFF")
    end_quietly(session.sparkContext)
    return session
