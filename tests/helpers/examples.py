"""Runs the programs of ``examples``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.helpers.waiting import run_to_end

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, home: Path, *arguments: str) -> str:
    command: list[str | Path] = [sys.executable, "-W", "error", EXAMPLES / name, *arguments]
    done = run_to_end(command, 240, env={**os.environ, "HOME": str(home)})
    assert done.returncode == 0, done.stderr
    return done.stdout
