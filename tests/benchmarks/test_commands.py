"""Every command of a benchmark that the pages show is one that its program takes."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import re
import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

ROOT = Path(__file__).resolve().parents[2]
STARTED_BY_OTHERS = (
    "benchmarks.clients.cpp_cases",
    "benchmarks.clients.aiokafka_cases",
    "benchmarks.scale.crowd",
    "benchmarks.scale.held",
)
COMMANDS = sorted(
    {
        command
        for path in (*(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").rglob("*.py"), ROOT / "Makefile")
        for command in re.findall(r"-m (benchmarks\.[\w.]+(?: [\w.,:=-]+)*)", path.read_text(encoding="utf-8"))
        if command.split()[0] not in STARTED_BY_OTHERS
    }
)


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 30


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_taken(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module, *arguments = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [module, *arguments, "--help"])
    is_package = (ROOT / module.replace(".", "/")).is_dir()
    program = importlib.import_module(f"{module}.__main__" if is_package else module)
    with pytest.raises(SystemExit) as ended:
        asyncio.run(work) if inspect.iscoroutine(work := program.main()) else None
    assert ended.value.code == 0, capsys.readouterr().err
