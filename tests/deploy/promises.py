"""Programs that use what an installation promises, run where nothing else is: ``python promises.py NAME …``."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def light(namesrv: str) -> None:
    """Send and receive with each compression; read a selector; run commands; nothing has NumPy."""
    from cometmq.client import ConsumeFromWhere, LitePullConfig, Message, ProducerConfig
    from cometmq.client.sync import SyncLitePullConsumer, SyncProducer
    from cometmq.filter import parse_selector
    from cometmq.message.sysflag import CompressionType

    body = b"large enough to be compressed " * 1_000
    kinds = (CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD)
    for kind in kinds:
        with SyncProducer("senders", namesrv, config=ProducerConfig(compression=kind)) as producer:
            producer.send(Message("Orders", body))
    config = LitePullConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with SyncLitePullConsumer("readers", namesrv, config=config) as consumer:
        consumer.subscribe("Orders")
        received: list[bytes] = []
        while len(received) < len(kinds):
            received += [message.body for message in consumer.poll(30)]
    assert received == [body] * len(kinds)
    assert parse_selector("a > 5 AND b = 'x'").matches({"a": "6", "b": "x"})
    for words in ("topic list", "group list", "cluster list", "message --help", "dlq --help", "doctor --cluster"):
        code, out, err = command(*words.split(), *([] if "--help" in words else ["-n", namesrv]))
        assert code in (0, 1), (words, out, err)
        assert "pip install" not in err, (words, err)
    code, out, err = command("consume", "Orders", "-n", namesrv, "--from-beginning", "--until-end", "-o", "jsonl")
    assert (code, out.count("\n")) == (0, 3), err
    assert not {"numpy", "h11", "yaml", "cryptography"} & set(sys.modules)


def missing(place: str) -> None:
    """Every command has its help; those of an extra, and its modules, say in one sentence how to install it."""
    from importlib import import_module

    from cometmq.cli.main import COMMANDS

    for name in COMMANDS:
        code, out, err = command(name, "--help")
        extra = {"backup": "server", "pipeline": "spark"}.get(name)
        assert code == 0 or f"pip install 'cometmq[{extra}]'" in err, (name, out, err)
    directory = Path(place, "new")
    for words in (
        ["serve", f"--data={directory}"],
        ["broker", f"--data={directory}"],
        ["namesrv"],
        ["proxy"],
        ["console", "-n", "127.0.0.1:9"],
        ["console", "user", "list"],
        ["tls", "make-certificates", str(directory)],
        ["metrics", "export", str(directory)],
    ):
        code, out, err = command(*words)
        assert (code, err.count("\n")) == (1, 1), (words, out, err)
        assert "which is not installed (pip install 'cometmq[server]')" in err, (words, err)
        assert out == "", (words, out)
    assert not directory.exists()
    for module, extra in (
        ("cometmq.broker.controller", "server"),
        ("cometmq.namesrv.server", "server"),
        ("cometmq.proxy.service", "server"),
        ("cometmq.store.message_store", "server"),
        ("cometmq.testing", "testing"),
        ("cometmq.integrations.django", "django"),
    ):
        assert f"cometmq[{extra}]" in refusal(partial(import_module, module))
    from cometmq import spark

    assert "cometmq[spark]" in refusal(lambda: spark.archive)


def server(place: str) -> None:
    """Serve everything; the console answers; make certificates and a dashboard."""
    lines: list[str] = []
    code, _, err = command("tls", "make-certificates", f"{place}/tls")
    assert code == 0, err
    code, _, err = command("metrics", "export", f"{place}/metrics")
    assert code == 0, err
    with running("serve", "--port=0", "--namesrv-port=0", f"--data={place}/data") as output:
        for line in output:
            lines.append(line)
            if line.startswith("Console at "):
                break
        else:
            raise AssertionError(lines)
        url = line.split()[-1]
        assert "CometMQ" in urllib.request.urlopen(url, timeout=60).read().decode()
    assert any(line.startswith("Clients of RocketMQ 5") for line in lines), lines
    assert any(line.startswith("Metrics at") for line in lines), lines


def opentelemetry() -> None:
    """Make metrics of a client, and the headers of a trace."""
    from cometmq.client.metrics import OpenTelemetryMetrics
    from cometmq.client.trace.context import opentelemetry_headers

    OpenTelemetryMetrics()
    assert opentelemetry_headers()() == {}


def otlp() -> None:
    """Make both exporters, and what they send."""
    from cometmq.metrics.options import MetricsOptions
    from cometmq.metrics.otlp import exporter_of, metrics_data

    for kind in ("OTLP_GRPC", "OTLP_HTTP"):
        exporter_of(
            MetricsOptions(metrics_exporter_type=kind, metrics_grpc_exporter_target="http://127.0.0.1:4317")
        ).shutdown()
    metrics_data([], {}, 1, 2)


def spark(namesrv: str) -> None:
    """Read a topic in a session, and make the functions of columns."""
    from cometmq.spark import local_session
    from cometmq.spark.bodies import from_protobuf

    session = local_session("local[1]", brief=True)
    reader = session.read.format("rocketmq").option("namesrvAddr", namesrv).option("topic", "Orders")
    bodies = [bytes(row.body) for row in reader.load().select("body").collect()]
    session.stop()
    assert bodies == [b"hello"], bodies
    assert callable(from_protobuf)


def delta(place: str) -> None:
    """Write and read an archive as a Delta table."""
    _archive(place, "delta")


def iceberg(place: str) -> None:
    """Write and read an archive as an Iceberg table."""
    _archive(place, "iceberg")


def _archive(place: str, name: str) -> None:
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.spark.lake_files import QUEUES, append

    from cometmq.spark.archives.log import ArchiveLog
    from cometmq.spark.archives.table import TableFormat

    append(ArchiveLog(place, TableFormat(name)), 0, QUEUES[0], 0, 5)
    assert [totals.rows for totals in ArchiveLog(place).queues()] == [5]


def send_greetings() -> None:
    """Do the work of a task that does not run."""


def django() -> None:
    """A task is stored, though no broker answers."""
    from tempfile import mkdtemp

    import django as framework
    from django.conf import settings

    tasks = {"BACKEND": "cometmq.integrations.django.CometMQBackend", "OPTIONS": {"namesrv": "127.0.0.1:9"}}
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{mkdtemp()}/tasks"}},
        INSTALLED_APPS=["cometmq.integrations.django"],
        TASKS={"default": tasks},
        USE_TZ=True,
    )
    framework.setup()
    from django.core.management import call_command

    from cometmq.integrations.django.api import Task
    from cometmq.integrations.django.models import StoredTask

    call_command("check")
    call_command("migrate", verbosity=0)
    result = Task(func=send_greetings).enqueue()
    row = StoredTask.objects.get(pk=result.id)
    assert (row.status, row.sent_at) == ("READY", None)
    assert "connection refused" in row.send_error
    assert not {"numpy", "h11", "yaml", "cryptography"} & set(sys.modules)


def plot() -> None:
    """Draw a plot of a report."""
    from cometmq.spark.jobs.report.drawing import figures
    from cometmq.spark.jobs.report.plots import bars

    drawn = figures([bars("Messages", "messages", [("a", 1), ("b", 2)])])
    assert drawn is not None
    assert "data:image/svg" in drawn[0]


def avro() -> None:
    """Decode a body, as the console does."""
    from cometmq.spark.bodies.avro import avro_value

    assert avro_value(b"\x04ab", '"string"') == "ab"


def connect() -> None:
    """Ask for a session of a server that is not there."""
    from cometmq.spark.errors import SparkSourceError
    from cometmq.spark.session.environment import driver_session

    with contextlib.suppress(SparkSourceError), driver_session(None, "sc://127.0.0.1:9", "test"):
        raise AssertionError("nothing serves there")
    import grpc  # noqa: F401
    import pyspark.sql.connect.session  # noqa: F401


def lake() -> None:
    """Ask for an object of a server that is not there, and of one without its package."""
    import cometmq.storage.connection
    from cometmq.errors import MissingPackageError
    from cometmq.storage import StorageOptions, StorageUnavailableError, open_storage

    cometmq.storage.connection._RETRIES = {"max_retries": 0}  # type: ignore[misc]
    for url in ("s3://bucket/x", "gs://bucket/x", "abfss://c@account.dfs.core.windows.net/x"):
        options = StorageOptions(endpoint="http://127.0.0.1:9", anonymous=True)
        with contextlib.suppress(StorageUnavailableError):
            open_storage(url, options).read("a")
            raise AssertionError("nothing serves there")
    with contextlib.suppress(MissingPackageError):
        open_storage("hdfs://127.0.0.1:9/x").read("a")
        raise AssertionError("hdfs-native is not installed")


def aws() -> None:
    """Read credentials from a profile."""
    import os
    import tempfile
    from pathlib import Path

    from cometmq.storage import StorageOptions, StorageUnavailableError, open_storage

    lake()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "credentials")
        file.write_text("[dev]\naws_access_key_id = a\naws_secret_access_key = b\n")
        os.environ["AWS_SHARED_CREDENTIALS_FILE"] = str(file)
        with contextlib.suppress(StorageUnavailableError):
            open_storage("s3://bucket/x", StorageOptions(endpoint="http://127.0.0.1:9", profile="dev")).read("a")
            raise AssertionError("nothing serves there")


def hdfs() -> None:
    """Make a client of HDFS; its first request would wait some minutes for a name node."""
    from cometmq.storage import Location
    from cometmq.storage.hdfs import HdfsStorage

    assert HdfsStorage(Location.parse("hdfs://127.0.0.1:9/x"))._client is not None


def command(*words: str) -> tuple[int, str, str]:
    """Run a command; return its exit code and what it writes."""
    from cometmq.cli.failures import guarded
    from cometmq.cli.main import root

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = guarded(lambda: root.main(words, prog_name="cometmq", standalone_mode=False))
    out.seek(0)
    err.seek(0)
    return code, out.read(), err.read()


@contextlib.contextmanager
def running(*words: str) -> Iterator[Iterator[str]]:
    """Run a server in a process of its own; yield the lines that it prints."""
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    too_late = threading.Timer(120, process.kill)
    too_late.start()
    try:
        assert process.stdout is not None
        yield iter(process.stdout)
    finally:
        too_late.cancel()
        process.terminate()
        process.communicate()


def refusal(load: Callable[[], Any]) -> str:
    """Return the sentence of an extra that is missing."""
    try:
        load()
    except ModuleNotFoundError as error:
        return str(error)
    raise AssertionError("it loads")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
