"""The real command as a subprocess, and a running cluster for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq.testing import ProcessCluster

COMMAND_SECONDS = 120.0


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class CommandLine:
    """Runs ``python -m cometmq`` against one nameserver."""

    namesrv: str = "127.0.0.1:1"

    def __call__(self, *arguments: str, stdin: str | bytes = b"", timeout_s: float = COMMAND_SECONDS) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        done = subprocess.run(
            [sys.executable, "-m", "cometmq", *arguments],
            input=data,
            capture_output=True,
            env=self.environment,
            timeout=timeout_s,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cometmq", *arguments]
        return subprocess.Popen(command, env=self.environment, **options)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
        return {**kept, "NAMESRV_ADDR": self.namesrv}


@pytest.fixture
def offline() -> CommandLine:
    """The command, with nothing running."""
    return CommandLine()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(data=tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def cometmq(cluster: ProcessCluster) -> CommandLine:
    """The command, with a cluster running."""
    return CommandLine(cluster.namesrv_address)


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.02)
