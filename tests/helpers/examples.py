"""Runs the programs of ``examples``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "HOME": str(home)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
