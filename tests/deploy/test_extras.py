"""Each installation alone, in an environment that has nothing else, does what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tests.helpers.fresh_environment import FreshEnvironment, build_wheel, keep_promise

from cometmq.testing import SyncCluster

OF_SERVERS = {"numpy", "h11", "starlette", "uvicorn", "jinja2", "argon2-cffi", "protobuf", "cryptography", "pyyaml"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def namesrv() -> Iterator[str]:
    """The nameserver of a cluster with the topic Orders."""
    with SyncCluster() as cluster:
        cluster.create_topic("Orders", 1)
        yield cluster.namesrv_address


def test_at_most_six_packages_are_required_without_an_extra(wheel: Path, tmp_path: Path) -> None:
    environment = FreshEnvironment(tmp_path, wheel, set())
    [metadata] = tmp_path.glob("lib/*/site-packages/cometmq-*.dist-info")
    required = [Requirement(text) for text in PathDistribution(metadata).requires or ()]
    always = [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert len(always) <= 6
    assert not environment.packages & OF_SERVERS


def test_the_client_and_its_commands_need_no_extra(wheel: Path, tmp_path: Path, namesrv: str) -> None:
    keep_promise(tmp_path, wheel, "", namesrv, name="light")


def test_a_command_or_module_without_its_extra_names_it(wheel: Path, tmp_path: Path) -> None:
    keep_promise(tmp_path, wheel, "", str(tmp_path), name="missing")


def test_the_pytest_plugin_leaves_a_users_tests_alone_without_the_test_kit(wheel: Path, tmp_path: Path) -> None:
    environment = FreshEnvironment(tmp_path / "environment", wheel, set(), ("pytest",))
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(): pass\ndef test_cluster(cometmq_sync_cluster): pass\n", encoding="utf-8"
    )
    done = environment.run("-m", "pytest", "-q", "-W", "error", place=tmp_path)
    assert "1 passed, 1 error" in done.stdout
    assert "the test kit needs numpy, which is not installed (pip install 'cometmq[testing]')" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_test_kit_runs_clusters(wheel: Path, tmp_path: Path) -> None:
    environment = FreshEnvironment(tmp_path / "environment", wheel, {"testing"})
    assert not environment.packages & {"starlette", "uvicorn", "jinja2", "argon2-cffi"}
    (tmp_path / "test_mine.py").write_text(TESTS, encoding="utf-8")
    options = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    done = environment.run("-m", "pytest", "-q", "-W", "error", *options, place=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


TESTS = """
import pytest
from cometmq.client import Message, Producer
from cometmq.client.sync import SyncProducer
from cometmq.testing import ProcessCluster

@pytest.mark.cometmq(tls=True, accounts=[])
async def test_async(cometmq_cluster, cometmq_topic):
    async with cometmq_cluster.inbox(cometmq_topic) as inbox:
        async with Producer("p", instance=cometmq_cluster.client_instance()) as producer:
            await producer.send(Message(cometmq_topic, b"hello"))
        assert [message.body for message in await inbox.expect(1)] == [b"hello"]

def test_sync(cometmq_sync_cluster, cometmq_topic):
    with SyncProducer("p", cometmq_sync_cluster.namesrv_address) as producer:
        assert producer.send(Message(cometmq_topic, b"hello")).queue_offset == 0

def test_processes(tmp_path):
    with ProcessCluster(data=tmp_path) as cluster, SyncProducer("p", cluster.namesrv_address) as producer:
        assert producer.send(Message("Orders", b"hello")).queue_offset == 0
"""


def test_a_server_serves_everything(wheel: Path, tmp_path: Path) -> None:
    keep_promise(tmp_path, wheel, "server", str(tmp_path))


@pytest.mark.parametrize("extra", ["delta", "iceberg"])
def test_an_archive_is_a_table(wheel: Path, tmp_path: Path, extra: str) -> None:
    keep_promise(tmp_path, wheel, extra, str(tmp_path / "lake"))


@pytest.mark.parametrize("extra", ["avro", "aws", "connect", "django", "hdfs", "lake", "opentelemetry", "otlp", "plot"])
def test_an_extra_does_what_it_promises(wheel: Path, tmp_path: Path, extra: str) -> None:
    keep_promise(tmp_path, wheel, extra)
