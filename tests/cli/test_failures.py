"""A failure is one sentence with the next step."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq import errors
from cometmq.cli.failures import FAILED, guarded
from cometmq.errors import SPARK, pip_install, require


def test_a_package_of_an_extra_that_is_missing_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: require("a Spark job", SPARK, "json", "no_such_package.sql")) == FAILED
    told = f"a Spark job needs no_such_package.sql, which is not installed ({pip_install(SPARK)})"
    assert capsys.readouterr().err == f"cometmq: {told}\n"


def test_an_extra_is_installed_in_the_clone_that_runs_and_otherwise_from_an_index(tmp_path: Path) -> None:
    """In a clone, the package of an index would replace the clone's own."""

    def told(directory: Path) -> str:
        (directory / "cometmq").mkdir(parents=True)
        (directory / "cometmq" / "__init__.py").touch()
        shutil.copy(errors.__file__, directory / "cometmq")
        program = "from cometmq.errors import pip_install; print(pip_install('spark'))"
        words = [sys.executable, "-c", program]
        done = subprocess.run(words, env={"PYTHONPATH": str(directory)}, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (tmp_path / "pyproject.toml").touch()
    assert told(tmp_path / "src") == f"pip install -e '{tmp_path}[spark]'"
    assert told(tmp_path / "site-packages") == "pip install 'cometmq[spark]'"


def test_a_module_of_ours_that_is_missing_is_a_bug(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise ModuleNotFoundError("No module named 'cometmq.nothing'", name="cometmq.nothing")

    assert guarded(run) == FAILED
    assert "this is a bug" in capsys.readouterr().err
