"""The commands of compose.yaml, as its containers would run them: another user, a clean directory, nothing to write
but /data. Names of containers become this machine, and their ports free ones."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.failover.etcd_servers import etcd
from tests.helpers.waiting import until, wait_for
from tests.interop.builds import ToolMissingError
from tests.interop.conftest import unavailable

from cometmq.client import Admin, Message, Producer, ProducerConfig, SendStatus
from cometmq.testing import free_port

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65_534
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
OURS = {name: service for name, service in COMPOSE["services"].items() if service["image"] == "cometmq"}
MEMBERS = ("broker-a-1", "broker-a-2", "broker-a-3")
JOBS = ("console-user", "monitoring-files")
PASSWORD = "correct horse battery"


def as_nobody() -> list[str]:
    """What runs a command as another user who can write nowhere; empty where we are nobody special ourselves."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return []
    can = "-all,+dac_read_search"  # to reach Python below /root
    user = ["--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    return ["setpriv", *user, "--inh-caps", can, "--ambient-caps", can, "--bounding-set", can]


class Containers:
    """Starts the commands of services; ``outside`` are the ports that clients on the host use."""

    def __init__(self, directory: Path, etcd: str) -> None:
        self.directory = directory
        self.etcd = etcd
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = {name: free_port() for name in OURS if name not in JOBS}
        self.outside = {name: free_port() for name in ("namesrv-a", "namesrv-b")}
        self.metrics = {name: free_port() for name in self.ports}
        self.secret = directory / "secret"
        self.secret.write_text(PASSWORD)
        self.root = directory / "root"
        self.root.mkdir(mode=0o555)

    def words(self, name: str) -> list[str]:
        """The command of a service with the names and ports of this machine."""
        words = [self._here(name, str(word)) for word in OURS[name]["command"]]
        if name in self.ports:
            words.append(f"--port={self.ports[name]}")
        if "--option=metricsExporterType=PROM" in words:
            words.append(f"--option=metricsPromExporterPort={self.metrics[name]}")
        return words

    def _here(self, name: str, word: str) -> str:
        for other, port in self.ports.items():
            word = word.replace(f"{other}:9876", f"127.0.0.1:{port}")
        word = re.sub(
            r"^--advertise=outside=localhost:\d+$", f"--advertise=outside=localhost:{self.ports.get(name)}", word
        )
        word = re.sub(r"^--advertise=broker-a.*$", "--advertise=127.0.0.1", word)
        word = word.replace("http://etcd:2379", self.etcd)
        word = word.replace("outside=19876", f"outside={self.outside.get(name)}")
        word = word.replace("/run/secrets/console-password", str(self.secret))
        return word.replace("/data", str(self.data(name)))

    def data(self, name: str) -> Path:
        """The volume of a service; one without has what the image's VOLUME makes."""
        [volume] = OURS[name].get("volumes", [name])
        directory = self.directory / str(volume).partition(":")[0]
        if not directory.exists():
            directory.mkdir(mode=0o700)
            if as_nobody():
                os.chown(directory, NOBODY, NOBODY)
        return directory

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a service."""
        with open(self.directory / f"{name}.log", "wb") as log:
            self.running[name] = subprocess.Popen(
                [*as_nobody(), sys.executable, "-m", "cometmq", *self.words(name)],
                cwd=self.root,
                env={"PATH": os.environ["PATH"], "HOME": str(self.data(name)), "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self.running[name]

    def is_healthy(self, name: str) -> bool:
        """Ask what the container's HEALTHCHECK asks."""
        path = f"{self.ports[name]}/healthz" if name == "console" else f"{self.metrics[name]}/readyz"
        try:
            if name == "proxy":
                socket.create_connection(("127.0.0.1", self.ports[name]), 4).close()
                return True
            with urllib.request.urlopen(f"http://127.0.0.1:{path}", timeout=4) as answer:
                return bool(answer.status == 200)
        except OSError:
            assert self.running[name].poll() is None, (self.directory / f"{name}.log").read_text()
            return False


@pytest.fixture(scope="module")
def containers() -> Iterator[Containers]:
    """All services of compose.yaml; not below pytest's directory, which other users cannot read."""
    with tempfile.TemporaryDirectory(prefix="cometmq-compose-") as directory:
        os.chmod(directory, 0o755)
        try:
            with etcd(Path(directory)) as cluster:
                yield from running(Path(directory), str(cluster.endpoints[0]))
        except ToolMissingError as problem:
            unavailable(problem)


def running(directory: Path, engine: str) -> Iterator[Containers]:
    made = Containers(directory, engine)
    os.chmod(made.secret, 0o644)
    order = sorted(
        OURS, key=lambda name: (name.startswith(("broker", "console", "proxy")), name == "console", len(name))
    )
    try:
        for name in order:
            process = made.start(name)
            if name in JOBS:
                assert process.wait(60) == 0, (directory / f"{name}.log").read_text()
            else:
                wait_for(partial(made.is_healthy, name), f"{name} is healthy")
        yield made
    finally:
        for process in reversed(made.running.values()):
            process.terminate()
        ends = {name: process.wait(60) for name, process in made.running.items()}
    assert ends == dict.fromkeys(made.running, 0)


def test_every_server_is_healthy_and_writes_only_to_its_volume(containers: Containers) -> None:
    assert {name: containers.is_healthy(name) for name in containers.ports} == dict.fromkeys(containers.ports, True)
    assert list(containers.root.iterdir()) == []
    assert (containers.data("monitoring-files") / "cometmq-alerts.yml").exists()


def test_clients_inside_and_on_the_host_send_through_the_addresses_that_they_get(containers: Containers) -> None:
    async def send() -> None:
        for number, port in enumerate((containers.ports["namesrv-b"], containers.outside["namesrv-a"])):
            address = f"127.0.0.1:{port}"
            async with Producer(f"senders-{number}", address) as producer, Admin(address) as admin:
                await producer.send(Message("Orders", b"from here"))
                [data] = (await admin.cluster_info()).broker_addr_table.values()
                host = ("127.0.0.1", "localhost")[number]
                assert 0 in data.broker_addrs, "the set has a master"
                assert sorted(data.broker_addrs.values()) == sorted(
                    f"{host}:{containers.ports[member]}" for member in MEMBERS
                )

    asyncio.run(send())


def test_another_member_takes_over_when_the_container_of_the_master_is_killed(containers: Containers) -> None:
    async def go_over() -> None:
        address = f"127.0.0.1:{containers.ports['namesrv-a']}"
        config = ProducerConfig(send_timeout_s=30)
        async with Producer("senders", address, config=config) as producer, Admin(address) as admin:
            await producer.send(Message("Orders", b"before"))
            [data] = (await admin.cluster_info()).broker_addr_table.values()
            ports = {f"127.0.0.1:{containers.ports[member]}": member for member in MEMBERS}
            master = ports[data.broker_addrs[0]]
            containers.running[master].kill()
            containers.running[master].wait()
            result = await producer.send(Message("Orders", b"after"))
            assert result.status is SendStatus.SEND_OK
            containers.start(master)
            await until(lambda: containers.is_healthy(master))

    asyncio.run(go_over())


def test_prometheus_asks_every_server_and_grafana_reads_what_the_job_exports(containers: Containers) -> None:
    asked = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    [job] = asked["scrape_configs"]
    targets = job["static_configs"][0]["targets"]
    servers = [name for name, service in OURS.items() if "--option=metricsExporterType=PROM" in service["command"]]
    assert (job["job_name"], sorted(targets)) == ("cometmq", sorted(f"{name}:5557" for name in servers))
    names = {path.name for path in containers.data("monitoring-files").iterdir()}
    assert {Path(rule).name for rule in asked["rule_files"]} <= names
    providers = yaml.safe_load((ROOT / "deploy/grafana/dashboards.yml").read_text())["providers"]
    mounts = [mount.split(":")[:2] for mount in COMPOSE["services"]["grafana"]["volumes"]]
    assert ["monitoring", providers[0]["options"]["path"]] in mounts
    assert "cometmq-dashboard.json" in names
    for name in ("prometheus", "grafana"):
        assert COMPOSE["services"][name]["group_add"] == ["10001"], "others may not read what our image writes"


def test_files_that_compose_mounts_exist_and_containers_may_do_little() -> None:
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", ()):
            if mount.startswith("./"):
                assert (ROOT / mount.split(":")[0]).is_file(), mount
    for name, service in OURS.items():
        has_secret = "secrets" in service  # Compose copies it into the container
        assert (service["read_only"], service["cap_drop"]) == (not has_secret, ["ALL"]), name
        for published in service.get("ports", ()):
            assert published.startswith("127.0.0.1:"), "without accounts, only this machine"
