"""Drivers of jobs in processes of their own, which tests kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.spark.forking import forking_python

PATIENCE_S = 120
"""For one driver; ten are enough on an idle machine."""


def start_driver(module: str, *words: str, is_fork: bool = True) -> subprocess.Popen[bytes]:
    """Start ``python -m module`` in a process group of its own.

    A fork has what it imports already. Its process ends with this one, and is no child of it: none that is paused.
    """
    return subprocess.Popen(
        [forking_python() if is_fork else sys.executable, "-m", module, *words],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def run_until_killed(spark: Any, module: str, *words: str) -> None:
    """Run an attached driver until it kills itself."""
    with tempfile.TemporaryFile() as errors:
        with attached(spark, module, *words, errors=errors.fileno()) as process:
            code = process.wait()
        errors.seek(0)
        assert code == -signal.SIGKILL, errors.read().decode(errors="replace")[-10_000:]


@contextlib.contextmanager
def attached(
    spark: Any, module: str, *words: str, errors: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a driver of :mod:`tests.spark.attached`; at the end of the block it is killed, with all of its work.

    Its Python is another process, with a session of its own, and its JVM is that of this session: a kill of the driver
    ends what it has in Spark, as the end of a JVM would. Within the block this process must start no stream.
    """
    gateway = spark.sparkContext._gateway
    there = {"PYSPARK_GATEWAY_PORT": str(gateway.java_parameters.port)}
    there["PYSPARK_GATEWAY_SECRET"] = gateway.java_parameters.auth_token
    process = subprocess.Popen(
        [forking_python(), "-m", "tests.spark.attached", module, *words],
        env=os.environ | there,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    try:
        yield process
    finally:
        end_group(process)
        _end_work(spark)


def _end_work(spark: Any) -> None:
    """End all streams and jobs of the JVM, and have it call this process again."""
    try:
        for query in spark._jsparkSession.sharedState().activeStreamingQueries().values():
            if query is not None:  # it ended between the look at the map's keys and that at its values
                query.stop()
        spark.sparkContext.cancelAllJobs()
        while spark.sparkContext.statusTracker().getActiveJobsIds():
            pass
    finally:
        _call_this_process(spark.sparkContext._gateway)


def _call_this_process(gateway: Any) -> None:
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

    if gateway.__dict__.get("_callback_server") is not None:  # otherwise PySpark does it when it starts one
        server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
        server.resetCallbackClient(server.getCallbackClient().getAddress(), gateway._python_proxy_port)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill driver, JVM and Python workers of one job at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
