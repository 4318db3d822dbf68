"""Whether Spark can run here, and a session that suits our jobs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.spark.errors import SparkSourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_MODULES: Final = ("pyspark", "pyarrow", "pandas")
_LOCAL_SHUFFLE_PARTITIONS: Final = 8
"""Spark's 200 are meant for clusters: on one machine each empty one costs milliseconds, and an audit took a minute."""
_BRIEF: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that compiles quickly rather than well, and collects garbage in one thread."""


class SparkMissingError(SparkSourceError):
    """PySpark, what it needs, or Java is not installed."""


class ConnectSessionError(SparkSourceError):
    """A job was given a session of Spark Connect."""


def demand_spark() -> None:
    """Demand what a Spark session needs.

    :raises SparkMissingError: saying what is missing and how to get it.
    """
    absent = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if absent:
        raise SparkMissingError(f"not installed: {', '.join(absent)}", next_step="pip install 'cometmq[spark]'")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        raise SparkMissingError(
            "Spark needs Java 17 or later, and there is no java on the PATH and no JAVA_HOME",
            next_step="install it, for example with: apt-get install openjdk-17-jre-headless",
        )


def driver_session(spark: SparkSession | None, master: str, app_name: str) -> SparkSession:
    """The session that a job was given, or one of its own on ``master``.

    :raises SparkMissingError: as :func:`demand_spark`.
    :raises ConnectSessionError: it is one of Spark Connect.
    """
    if spark is None:
        return local_session(master, app_name)
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise ConnectSessionError(
            "a job counts and commits in the driver's process, which a session of Spark Connect is not in",
            next_step="run the job by spark-submit, or with --master; reading, writing and streams work by Connect",
        )
    return spark


def local_session(master: str = "local[*]", app_name: str = "cometmq", *, brief: bool = False) -> SparkSession:
    """Make a quiet session whose workers run this Python.

    :param brief: it lives for a minute or two, on little data: the JVM does not pay for speed that comes later.
    :raises SparkMissingError: as :func:`demand_spark`.
    """
    demand_spark()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    options = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{options} {_BRIEF}" if brief else options)
    builder = SparkSession.builder
    if master.startswith("local"):
        builder = builder.config("spark.sql.shuffle.partitions", str(_LOCAL_SHUFFLE_PARTITIONS))
    session = (
        builder.master(master)
        .appName(app_name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
