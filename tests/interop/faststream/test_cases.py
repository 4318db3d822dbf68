"""FastStream's own test cases for providers, unmodified: without servers, with CometMQ, and with Apache RocketMQ 5."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest
from tests.interop import builds
from tests.interop.celery.suites import Outcome
from tests.interop.systems import Deployment, System

pytestmark = pytest.mark.interop

ROOT: Final = Path(__file__).parents[3]
CASES: Final = Path(__file__).parent / "cases"
RUN_S: Final = 280.0
REAL: Final = (
    "memory_cases.py::TestClient::test_broker_with_real_patches_publishers_and_subscribers",
    "memory_cases.py::TestRouter::test_include_publisher_with_prefix",
)
"""Cases of brokers in memory that connect to servers."""
CHANGED: Final = {
    "page_cases.py::TestArguments3::test_slash_in_title": "wants a channel's name as its address",
    "page_cases.py::TestArgumentsOfRouters::test_slash_in_title": "the same",
}
"""Cases of the pinned commit that FastStream 0.7.8 has changed: its own brokers say the topic."""
NOT_USED: Final = {
    "tests.brokers.base.address": "a topic of RocketMQ is no pattern",
    "tests.brokers.base.fastapi": "FastStream's routers for FastAPI move into a package of their own",
    "tests.brokers.base.publish_command.BatchKeysTestcase": "messages of a batch have options, not keys of Kafka",
}
"""Test cases that no class in ``cases`` has, with the reason."""


@pytest.fixture(scope="module")
def suite() -> Path:
    try:
        return builds.faststream_cases()
    except (builds.ToolMissingError, subprocess.TimeoutExpired) as problem:
        pytest.skip(f"{problem}; they are in no package, so a machine that reaches package registries only lacks them")


def run(suite: Path, *arguments: str, apart: Iterable[str] = (), **more: str) -> Outcome:
    path = [suite, suite / "lib", CASES, ROOT / "src", ROOT / "integrations" / "faststream" / "src"]
    told = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONDONTWRITEBYTECODE": "1", **more}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NAMESRV"))}
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", "--import-mode=importlib", "--tb=short"]
    done = subprocess.run(
        [*command, *(f"--deselect={place}" for place in apart), *arguments],
        cwd=CASES,
        env={**inherited, **told},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    return Outcome.of(done.stderr + done.stdout)


def test_cases_without_servers_pass(suite: Path) -> None:
    outcome = run(suite, "memory_cases.py", "page_cases.py", "-m", "not connected", apart=(*REAL, *CHANGED))
    assert not outcome.failed, outcome.text
    assert outcome.passed == 332


@pytest.mark.parametrize("system", [System.COMETMQ, System.APACHE55], ids=lambda system: system.value)
def test_cases_with_servers_pass(suite: Path, system: System, deploy: Callable[..., Deployment]) -> None:
    address = deploy(system).address
    outcome = run(suite, "server_cases.py", *REAL, NAMESRV_ADDR=address)
    assert not outcome.failed, outcome.text
    assert outcome.passed == 129
