"""A fresh Apache Kafka 3.9.1 for benchmarks: one JVM in KRaft mode with 1 GB of heap.

Its jars come from Maven Central by package name, once, into the cache of the interop tests.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Final

from tests.helpers.waiting import wait_for
from tests.interop import builds, probe

from cometmq.testing import free_port

POM: Final = Path(__file__).with_name("pom.xml")
CLUSTER_ID: Final = "MkU3OEVBNTcwNTJENDM2Qg"
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
JAVA_OPTIONS: Final = ("-Xms1g", "-Xmx1g")


def kafka_jars() -> Path:
    """The jars of Kafka's broker and of Spark's connector."""
    builds.java()

    def make(target: Path) -> None:
        command = [builds.tool("mvn"), "-q", "-B", "-f", str(POM), f"-Doutput.directory={target}"]
        done = subprocess.run([*command, "dependency:copy-dependencies"], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"maven did not bring Kafka:\n{done.stdout[-3000:]}")

    return builds.built(builds.Build("kafka", (POM,), make)) / "lib"


class KafkaBroker:
    """The broker, started on a new directory and ready."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        port, controller = free_port(), free_port()
        self.address: Final = f"127.0.0.1:{port}"
        keys = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "log.segment.delete.delay.ms": 0,
        }
        settings = directory / "server.properties"
        settings.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        java = [builds.java(), *JAVA_OPTIONS, "-cp", f"{kafka_jars()}/*"]
        with (directory / "kafka.out").open("wb") as output:
            run: Any = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": directory}
            subprocess.run(
                [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", settings], check=True, **run
            )
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], start_new_session=True, **run)
        wait_for(lambda: probe.port_open(self.address), "Kafka is ready", START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
