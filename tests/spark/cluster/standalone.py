"""A Spark standalone cluster of real processes on the loopback: a master, workers that can be killed, and a driver."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.waiting import wait_for
from tests.spark.forking import forking_python
from tests.spark.home import FEW_ROWS, class_path, java_command, java_options, lines_of, spark_home

from cometmq.testing import free_port

PATIENCE_S = 180.0
"""For anything that Spark does; seconds on an idle machine."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DEFAULTS = """
spark.executor.memory          512m
spark.executor.cores           1
spark.executor.extraJavaOptions {java}
spark.driver.memory            768m
spark.driver.extraJavaOptions  {java}
spark.driver.host              127.0.0.1
spark.driver.bindAddress       127.0.0.1
spark.sql.shuffle.partitions   2
"""


@dataclass
class Process:
    """One process in a group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL to this process alone; what it has started finds out by itself."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """SIGKILL to it and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Standalone:
    """``with Standalone(directory) as cluster:``."""

    directory: Path
    workers: int = 2

    def __enter__(self) -> Standalone:
        self._stack = ExitStack()
        self._running: list[Process] = []
        self._started = 0
        with ExitStack() as stack:
            port, self._web = free_port(), free_port()
            self.address = f"spark://127.0.0.1:{port}"
            arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(self._web)]
            self._java(stack, "master", _MASTER, *arguments)
            wait_for(lambda: self._state() is not None, "the master answers", PATIENCE_S)
            for _ in range(self.workers):
                self._start_worker(stack)
            self._await_workers()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill_worker(self) -> None:
        """SIGKILL to the oldest worker and its executors, as when a machine goes; the master notices by itself."""
        self._running.pop(0).end()

    def replace_workers(self) -> None:
        """Start as many workers as were killed; returns when all have registered."""
        while len(self._running) < self.workers:
            self._start_worker(self._stack)
        self._await_workers()

    def _start_worker(self, stack: ExitStack) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        arguments = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        place = str(self.directory / name)
        self._running.append(self._java(stack, name, _WORKER, *arguments, "--work-dir", place, self.address))

    def _await_workers(self) -> None:
        def ready() -> bool:
            state = self._state()
            return state is not None and state["aliveworkers"] == len(self._running)

        wait_for(ready, f"{len(self._running)} workers have registered", PATIENCE_S)

    def _state(self) -> dict[str, Any] | None:
        """The state that the master reports; ``None`` while it starts.

        It opens its port before all its pages are there: for a moment its front page answers for every address.
        """
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, json.JSONDecodeError):
            return None

    def _java(self, stack: ExitStack, name: str, main: str, *arguments: str) -> Process:
        command = [str(java_command()), "-Xmx192m", *java_options().split(), "-cp", class_path(), main, *arguments]
        (core,) = (spark_home() / "jars").glob("spark-core_*.jar")
        own = {
            "SPARK_HOME": str(spark_home()),
            "SPARK_SCALA_VERSION": core.name.split("_")[1].split("-")[0],  # what Spark's own scripts find out
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
        }
        log = self.directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = Process(process, log)
        stack.callback(started.end)
        return started


class Driver:
    """A driver program on a cluster: calls functions of :mod:`tests.spark.cluster.on_cluster` one after the other.

    Spark's settings come from a file of properties, as on any cluster; the session is the one that the jobs make.
    """

    def __init__(
        self, command: list[str], directory: Path, environment: Mapping[str, str], arguments: Sequence[str] = ()
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        settings = directory / "spark-defaults.conf"
        settings.write_text(_DEFAULTS.format(java=java_options()) + lines_of(FEW_ROWS))
        words = ["--properties-file", str(settings), *arguments, "pyspark-shell"]
        self._log = directory / "driver.log"
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYSPARK_SUBMIT_ARGS": shlex.join(words), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
            )

    def start(self, function: str, **arguments: Any) -> None:
        """Begin a call; :meth:`result` waits for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([function, arguments]) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        """The result of the call under way."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the driver ended\n{self._log.read_text()[-4000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def call(self, function: str, **arguments: Any) -> Any:
        """Call and wait."""
        self.start(function, **arguments)
        return self.result()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it with its JVM and Python workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@contextlib.contextmanager
def driving(cluster: Standalone, directory: Path) -> Iterator[Driver]:
    """A driver for the length of the block, a Python program as people start it."""
    command = [sys.executable, "-m", "tests.spark.cluster.on_cluster", cluster.address]
    with Driver(command, directory, {"PYSPARK_PYTHON": str(forking_python())}) as driver:
        yield driver


@contextlib.contextmanager
def with_py_files(cluster: Standalone, directory: Path, package: str) -> Iterator[Driver]:
    """The same with ``--py-files``; all Pythons have what is installed here but CometMQ, which comes as a zip."""
    import pyspark
    from tests.spark.cluster import on_cluster

    directory.mkdir()
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without what the installed .pth files name
    python.chmod(0o755)
    site = str(Path(pyspark.__file__).parent.parent)
    environment = {
        "PYSPARK_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join([package, site]),
    }
    arguments = ["--py-files", package, "--conf", f"spark.executorEnv.PYTHONPATH={site}"]
    arguments += ["--conf", "spark.cores.max=1"]  # one executor
    command = [str(python), str(on_cluster.__file__), cluster.address]
    with Driver(command, directory, environment, arguments) as driver:
        yield driver
