"""A broker of its own, and one Spark session, for all tests of this room.

``COMETMQ_SPARK_SYSTEM=apache`` runs every test here against real Apache RocketMQ instead.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import runpy
import shutil
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from tests.interop.systems import Deployment, System, deploy
from tests.spark.home import FEW_ROWS, quick_drivers, spark_home
from tests.spark.mending import PARTITIONS, mend
from tests.spark.topics import Topics

from cometmq.spark.session.lost import stop
from cometmq.spark.source.options import SourceOptions, parse_options

SYSTEM = System(os.environ.get("COMETMQ_SPARK_SYSTEM", "cometmq"))


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A nameserver and a broker for the whole session."""
    running = deploy(SYSTEM, tmp_path_factory.mktemp("spark-broker"), enablePropertyFilter="true")
    yield running
    running.close()


@pytest.fixture(scope="session")
def topics(deployment: Deployment) -> Topics:
    """Makes topics on it."""
    return Topics(deployment.address, deployment.broker.address)


MakeOptions = Callable[..., SourceOptions]


@pytest.fixture
def options(deployment: Deployment) -> MakeOptions:
    """Options of a reader on it."""

    def make(topic: str, **more: Any) -> SourceOptions:
        given = {"namesrvAddr": deployment.address, "topic": topic, "pollTimeoutMs": "5000"}
        return parse_options(given | {name: str(value) for name, value in more.items()})

    return make


EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
RunExample = Callable[..., str]


@pytest.fixture
def run_example(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[RunExample]:
    """Run a script of ``examples/spark`` in the tests' session, which it does not stop; gives what it printed."""
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    yield run
    spark.sparkContext.setLogLevel("ERROR")


@pytest.fixture(scope="module", autouse=True)
def few_files_are_open() -> None:
    """The stores of crash tests before in this process are closed.

    Py4J waits for calls of the JVM by `select`, which knows 1,024 descriptors: with more, a stream waits for ever.
    """
    gc.collect()


MOST_ROWS = 500
"""Rows that a job may bring to the driver at once here: of queues, groups, tasks and files, never of messages."""


@pytest.fixture(autouse=True)
def jobs_collect_nothing_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every test of this room: what the package's own code brings to the driver is a few rows."""
    try:
        from pyspark.sql.classic.dataframe import DataFrame
    except ImportError:
        return

    def watched(name: str) -> Callable[..., Any]:
        collect = getattr(DataFrame, name)

        def collect_few(frame: Any, *arguments: Any, **named: Any) -> Any:
            rows = collect(frame, *arguments, **named)
            asks = sys._getframe(1).f_globals["__name__"]
            if asks.startswith("cometmq."):
                assert name == "collect", f"{asks} calls {name}, which these tests do not count"
                assert len(rows) <= MOST_ROWS, f"{asks} has collected {len(rows)} rows"
            return rows

        return collect_few

    for name in ("collect", "toPandas", "toArrow", "toLocalIterator"):
        monkeypatch.setattr(DataFrame, name, watched(name))


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Defaults of all drivers here, those of commands and examples too, and where their Spark is."""
    pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")
    # JVMs that are killed leave their temporary files; the path of sockets among them has to be short.
    temporary = TemporaryDirectory(prefix="spark-", ignore_cleanup_errors=True)
    with temporary as place, pytest.MonkeyPatch.context() as patch:
        own = quick_drivers(tmp_path_factory.mktemp("spark-conf"), f"-Djava.io.tmpdir={place}", FEW_ROWS)
        for name, value in own.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(autouse=True)
def drivers_start_quickly(request: pytest.FixtureRequest) -> None:
    """In every test that has drivers."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("settings")


@pytest.fixture(scope="session")
def spark(settings: None) -> Iterator[Any]:
    """One local Spark session with two cores."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java 17 or later, and there is no java on the PATH")
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (pip install cometmq[spark])")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[2]")
            .appName("cometmq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", str(PARTITIONS))
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.driver.memory", "1g")
            .config(map=dict(FEW_ROWS))
            .getOrCreate()
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    stop(session)


@pytest.fixture
def event_log(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory to which the session writes the events of its web page in this test: 94 MB in those of the jobs."""
    place = tmp_path_factory.mktemp("event-log")
    jvm, context = spark._jvm, spark._jsc.sc()
    log = jvm.org.apache.spark.scheduler.EventLoggingListener(
        context.applicationId(),
        jvm.scala.Option.empty(),
        jvm.java.net.URI(place.as_uri()),
        context.conf().clone().set("spark.eventLog.compress", "false"),
        context.hadoopConfiguration(),
    )
    log.start()
    context.listenerBus().addToEventLogQueue(log)
    spark.conf.set("spark.sql.ui.explainMode", "formatted")  # as everywhere else
    yield place
    spark.conf.set("spark.sql.ui.explainMode", FEW_ROWS["spark.sql.ui.explainMode"])
    context.removeSparkListener(log)
    log.stop()


HERE = Path(__file__).parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build Spark's home before the time of any test begins; on a slow machine marked limits grow as others do."""
    items = [item for item in session.items if item.path.is_relative_to(HERE)]
    slower = float(os.environ.get("PYTEST_TIMEOUT", USUAL_SECONDS)) / USUAL_SECONDS
    for item in items:
        for mark in item.iter_markers("timeout"):
            item.add_marker(pytest.mark.timeout(mark.args[0] * slower), append=False)
            break
    if any(item.get_closest_marker("spark") for item in items) and importlib.util.find_spec("pyspark"):
        with contextlib.suppress(Exception):  # the first test raises it again
            spark_home()


USUAL_SECONDS = 300
"""The limit of a test in pyproject.toml."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Whatever a test has done to the session, the next one has a session that works."""
    mend(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that is interrupted can clean up by the session."""
    try:
        return (yield)
    except BaseException:
        mend(item)
        raise


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of all files that are flushed from here on."""
    inodes: set[int] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        inodes.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", noted)
    return inodes
