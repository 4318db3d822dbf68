"""The real command as a subprocess, and a running cluster for it."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from tests.helpers.commands import CommandServer

from cometmq.testing import ProcessCluster

COMMAND_SECONDS = 120.0


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
        server = command_server()
        if server.takes(arguments, self.environment, data):
            code, out, err = server.run(arguments, self.environment, data, timeout_s)
            return Result(code, out.decode(), err.decode())
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


@cache
def command_server() -> CommandServer:
    """One for the whole process, which ends with it."""
    server = CommandServer()
    atexit.register(server.close)
    return server


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
