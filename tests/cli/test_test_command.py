"""scripts/test: which failures are the tests' last word, and which were for want of time."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKERS = """
[tool.pytest.ini_options]
addopts = "--strict-markers -p xdist"
markers = ["interop: i", "crash: c", "spark: s"]
"""
FAILS_ONCE = """
import pathlib, pytest

@pytest.mark.interop
def test_is_slow_beside_others():
    mark = pathlib.Path(__file__).with_suffix(".ran")
    was_here = mark.exists()
    mark.touch()
    assert was_here

@pytest.mark.interop
def test_passes():
    pass
"""
FAILS = """
import pytest

@pytest.mark.crash
@pytest.mark.parametrize("number", range(%d))
def test_fails(number):
    assert number < 0
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose test command is this one's."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts")
    (tmp_path / "pyproject.toml").write_text(MARKERS)
    return tmp_path


def run_tests(project: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/test", "--only-tests"]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False, timeout=280)


def test_a_test_that_passes_only_alone_is_named_and_counted_once(project: Path) -> None:
    for name, mark in (("unit", ""), ("process", "@pytest.mark.interop"), ("spark", "@pytest.mark.spark")):
        (project / "tests" / f"test_{name}.py").write_text(FAILS_ONCE.replace("@pytest.mark.interop", mark))
    done = run_tests(project)
    assert done.returncode == 0, done.stdout
    named = (f"tests.test_{name}::test_is_slow_beside_others" for name in ("process", "unit", "spark"))
    assert f"PASSED ONLY ALONE, look into them: {', '.join(named)}\n" in done.stdout
    assert "= 6 passed in" in done.stdout


@pytest.mark.parametrize(("modules", "number", "runs"), [(3, 7, 2), (4, 1, 1)])
def test_what_fails_alone_too_or_in_many_modules_fails(project: Path, modules: int, number: int, runs: int) -> None:
    for module in range(modules):
        (project / "tests" / f"test_fails_{module}.py").write_text(FAILS % number)
    done = run_tests(project)
    assert done.returncode == 1
    assert done.stdout.count("── interop and crash tests …") == runs
    assert "FAILED parts: interop and crash tests" in done.stdout
    assert f"= {modules * number} failed in" in done.stdout
    assert "PASSED ONLY ALONE" not in done.stdout
