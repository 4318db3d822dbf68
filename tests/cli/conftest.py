"""The real command as a subprocess, and a running cluster for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers import forks

from cometmq.testing import ProcessCluster

COMMAND_SECONDS = 120.0
STARTED_ANEW = frozenset({"serve", "broker", "namesrv", "pipeline"})
"""Commands that start servers or Spark: how they start is part of what their tests see."""


@dataclass(frozen=True)
class Result:
    """The end of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True)
class CommandLine:
    """Runs ``python -m cometmq`` against one nameserver; where it can, in a fork of a process that has the modules."""

    namesrv: str = "127.0.0.1:1"

    def __call__(self, *arguments: str, stdin: str | bytes = b"", timeout_s: float = COMMAND_SECONDS) -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = self._command(arguments)
        if STARTED_ANEW.isdisjoint(arguments[:1]):
            done = forks.run(command, stdin=data, env=self.environment, timeout_s=timeout_s)
        else:
            done = subprocess.run(
                command, input=data, capture_output=True, env=self.environment, timeout=timeout_s, check=False
            )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command(arguments), env=self.environment, **options)

    @staticmethod
    def _command(arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "cometmq", *arguments]

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
