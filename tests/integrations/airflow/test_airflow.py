"""Airflow's trigger with Airflow itself, in an environment of its own, which is built once and kept."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.waiting import wait_for
from tests.integrations.damaged import send_damaged_to
from tests.interop.builds import ToolMissingError, airflow_three

from cometmq.client import Message
from cometmq.client.sync import SyncAdmin, SyncProducer, SyncSimpleConsumer
from cometmq.testing import ProcessCluster, SyncCluster

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture(scope="module")
def airflow() -> Path:
    """The Python of the environment."""
    try:
        return airflow_three() / "bin" / "python"
    except (ToolMissingError, subprocess.SubprocessError, OSError) as problem:
        if os.environ.get("COMETMQ_REQUIRE_INTEROP") == "1":
            pytest.fail(str(problem))
        pytest.skip(f"Airflow cannot be installed here: {problem}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with the metadata that an installed CometMQ has, by which Airflow finds the provider."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (name, value) = next(iter(project["entry-points"]["apache_airflow_provider"].items()))
    metadata = tmp_path / "cometmq-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: cometmq\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(f"[apache_airflow_provider]\n{name} = {value}\n")
    return tmp_path


def environment(home: Path, **variables: str) -> dict[str, str]:
    return {
        **variables,
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "AIRFLOW_HOME": str(home / "airflow"),
        "PYTHONPATH": f"{home}:{ROOT / 'src'}",
    }


def run(airflow: Path, home: Path, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [airflow, HERE / "program.py", *arguments],
        env=environment(home, **variables),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    payloads: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return payloads


def left(cluster: ProcessCluster, topic: str, group: str) -> list[bytes]:
    """The messages that the group receives again."""
    found: list[bytes] = []
    with SyncSimpleConsumer(group, {topic: "*"}, cluster.namesrv_address) as reader:
        while messages := reader.receive(wait_s=2.0):
            found += [message.body for message in messages]
            reader.ack(messages)
    return found


def send(cluster: ProcessCluster, topic: str, *bodies: bytes) -> None:
    with SyncAdmin(cluster.namesrv_address) as admin, SyncProducer("p", cluster.namesrv_address) as producer:
        admin.create_topic(topic, queues=1)
        for body in bodies:
            producer.send(Message(topic, body, keys=["k"], tags="t"))


def test_a_message_is_acknowledged_when_its_event_is_stored(airflow: Path, cluster: ProcessCluster, home: Path) -> None:
    send(cluster, "orders", b"one", "zwölf".encode(), b"\xff")
    payloads = run(airflow, home, cluster.namesrv_address, "orders", "dags", "3", "1")
    assert [payload.get("body") for payload in payloads] == ["one", "zwölf", None]
    assert payloads[2]["body_base64"] == "/w=="
    assert {(payload["topic"], payload["tags"], *payload["keys"]) for payload in payloads} == {("orders", "t", "k")}
    assert sorted(left(cluster, "orders", "dags")) == sorted(["zwölf".encode(), b"\xff"])


@pytest.mark.parametrize("counts", [["1"], ["2", "1"]], ids=["older", "shared stream"])
def test_a_message_with_a_damaged_body_is_a_dead_letter(
    airflow: Path, cluster: ProcessCluster, home: Path, counts: list[str]
) -> None:
    topic, group = f"damaged-{len(counts)}", f"dags-{len(counts)}"
    send(cluster, topic)
    with SyncAdmin(cluster.namesrv_address) as admin:
        (address,) = admin.masters().values()
    asyncio.run(send_damaged_to(address, topic))
    send(cluster, topic, b"one", b"two")
    payloads = run(airflow, home, cluster.namesrv_address, topic, group, *counts)
    assert [payload["body"] for payload in payloads] == ["one", "two"]
    assert left(cluster, topic, group) == [b"two"]


def test_no_event_is_lost_when_a_triggerer_is_killed(airflow: Path, cluster: ProcessCluster, home: Path) -> None:
    """apache/airflow#31795: messages of Kafka were committed before their events were stored."""
    address = cluster.namesrv_address
    files = [home / "killed", home / "other"]
    with ExitStack() as stack:
        producer, admin = stack.enter_context(SyncProducer("p", address)), stack.enter_context(SyncAdmin(address))
        admin.create_topic("killed", queues=4)
        triggerers = []
        for file, confirmed in zip(files, ("2", "1000"), strict=True):
            words = ["store", address, "killed", "dags", str(file), confirmed]
            command = [str(airflow), str(HERE / "program.py"), *words]
            triggerers.append(stack.enter_context(subprocess.Popen(command, env=environment(home))))
            stack.callback(triggerers[-1].kill)
        sent: list[str] = []

        def is_in_the_middle() -> bool:
            sent.append(str(len(sent)))
            producer.send(Message("killed", sent[-1].encode()))
            return len(bodies(files[0], "taken")) >= 2 and bool(bodies(files[1], "stored"))

        wait_for(is_in_the_middle, "both triggerers", timeout_s=120)
        triggerers[0].kill()
        wait_for(lambda: {*bodies(files[0], "stored"), *bodies(files[1], "stored")} == {*sent}, "all events", 20)
    assert {*bodies(files[0], "taken")} <= {*bodies(files[1], "stored")}


def bodies(file: Path, state: str) -> list[str]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split()[1] for line in lines if line.startswith(state)]


def test_in_older_versions_it_is_acknowledged_when_its_event_is_taken(
    airflow: Path, cluster: ProcessCluster, home: Path
) -> None:
    send(cluster, "older", b"one", b"two")
    payloads = run(airflow, home, cluster.namesrv_address, "older", "dags", "1")
    assert [payload["body"] for payload in payloads] == ["one", "two"]
    assert left(cluster, "older", "dags") == [b"two"]


ACCOUNT = {
    "accessKey": "airflow",
    "secretKey": "secret / of : airflow",
    "admin": False,
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "DENY",
    "topicPerms": ["orders=PUB|SUB"],
    "groupPerms": ["dags=SUB", "airflow=PUB"],
}


def test_a_connection_has_the_nameservers_the_account_and_tls(airflow: Path, home: Path) -> None:
    """The form offers the type, a task sends with the hook, and the triggerer receives with the trigger's conn_id."""
    with SyncCluster(accounts=[ACCOUNT], tls=True) as secured:
        tls = secured.cluster.security.tls
        assert tls is not None
        with SyncAdmin(secured.namesrv_address, security=secured.cluster.security) as admin:
            admin.create_topic("orders", queues=1)
        host, port = secured.namesrv_address.split(":")
        extra = json.dumps({"tls": True, "trust_cert_path": tls.trust_cert_path})
        fields = {"conn_type": "rocketmq", "host": host, "port": int(port), "login": "airflow", "extra": extra}
        whole = json.dumps({**fields, "password": ACCOUNT["secretKey"]})
        told, payload = run(airflow, home, "connection", "cluster", "orders", AIRFLOW_CONN_CLUSTER=whole)
    assert told["is_good"], told
    assert told["type"] == "CometMQ and Apache RocketMQ"
    assert payload["body"] == "one"
