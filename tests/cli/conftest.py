"""The real command as a subprocess, and a running cluster for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from tests.helpers import forks

from cometmq.testing import ProcessCluster

COMMAND_SECONDS = 120.0
STARTED_ANEW = frozenset({"serve", "broker", "namesrv", "demo", "pipeline"})
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
        begin = forks.start if STARTED_ANEW.isdisjoint(arguments[:1]) else subprocess.Popen
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = begin(
                self._command(arguments), stdin=subprocess.PIPE, stdout=out, stderr=err, env=self.environment
            )
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(data)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise
            out.seek(0)
            err.seek(0)
            return Result(code, out.read().decode(), err.read().decode())

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
