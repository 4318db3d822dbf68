"""A Spark Connect server, a process of its own as people start it, and sessions of this process on it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import wait_for
from tests.spark.forking import forking_python
from tests.spark.home import java_options, spark_home

PATIENCE_S = 180.0
"""For the server's start; some seconds on an idle machine."""
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
_STARTED = re.compile(rb"Spark Connect server started at: \S*:(\d+)")
_CONFIGURATION = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",  # the log tells which it took
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


@contextlib.contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A server with two cores for the length of the block; its address."""
    home = spark_home()
    log = directory / "server.log"
    settings = [word for name, value in _CONFIGURATION.items() for word in ("--conf", f"{name}={value}")]
    own = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_SUBMIT_OPTS": f"{java_options()} -Djava.io.tmpdir={directory}",
        "PYSPARK_PYTHON": str(forking_python()),
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--master", "local[2]", *settings, "--class", _SERVER],
            cwd=directory,
            env=os.environ | own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def port() -> bytes | None:
        assert process.poll() is None, f"the server ended\n{log.read_text()[-4000:]}"
        found = _STARTED.search(log.read_bytes())
        return found and found[1]

    try:
        wait_for(lambda: port() is not None, "the Spark Connect server has started", PATIENCE_S)
        yield f"sc://127.0.0.1:{int(port() or 0)}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def connected(address: str) -> Iterator[Any]:
    """A session; within the block ``pyspark.sql.functions`` make columns of such sessions, as in a client's process."""
    from pyspark.sql.connect.session import SparkSession

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
        session = SparkSession.builder.remote(address).create()
        session.conf.set("spark.sql.session.timeZone", "UTC")
        yield session
        session.stop()
