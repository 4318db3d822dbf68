"""The application in examples/testing and its tests, as a user runs them, and the page that explains them."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

from cometmq import testing
from cometmq.testing import Cluster, Inbox, Link, VirtualClock

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"


def test_the_tests_of_the_example_pass(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples/testing", project, ignore=shutil.ignore_patterns("__pycache__"))
    without = ("-p", "no:cacheprovider", "-p", "no:timeout", "-p", "no:xdist")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *without, f"--basetemp={tmp_path / 't'}"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_the_page_names_what_there_is() -> None:
    page = PAGE.read_text()
    for name in testing.__all__:
        assert re.search(rf"\b{name}\b", page), name
    for kind in (Cluster, Inbox, Link, VirtualClock):
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and (kind, name) not in INNER:
                assert re.search(rf"\b{name}\b", page), f"{kind.__name__}.{name}"


INNER = {
    (Link, "opened"),
    (Link, "ended"),
    (Link, "take"),
    (Link, "start"),
    (Link, "stop"),
    (Cluster, "start"),
    (Cluster, "stop"),
    (VirtualClock, "step"),
    (VirtualClock, "call_later"),
    (VirtualClock, "now_ms"),
    (VirtualClock, "monotonic"),
    (VirtualClock, "sleep"),
}


def test_the_recipes_of_the_page_are_python() -> None:
    recipes = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(recipes) >= 5
    for recipe in recipes:
        compile(recipe, str(PAGE), "exec")
