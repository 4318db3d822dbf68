"""A compiled core runs only with the package that it was built for; what is wrong otherwise is said in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.core import CORE
from cometmq.core_sources import FILE, sources_hash

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "native"


def package(directory: Path) -> Path:
    """A package with the modules that choose the code."""
    made = directory / "cometmq"
    made.mkdir(parents=True)
    for name in ("__init__.py", "core.py", "core_sources.py"):
        shutil.copy(ROOT / "src" / "cometmq" / name, made)
    return made


def chosen(directory: Path, **environment: str) -> tuple[str, str]:
    """The code that a package chooses, and the way to the compiled core."""
    program = "from cometmq.core import NEXT_STEP, PATH; print(PATH); print(NEXT_STEP)"
    env = {**os.environ, "PYTHONPATH": str(directory), **environment}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    path, next_step = done.stdout.splitlines()
    return path, next_step


def test_an_installed_package_takes_the_core_of_its_own_state_only(tmp_path: Path) -> None:
    file = package(tmp_path) / FILE
    file.write_text(sources_hash(SOURCES) + "\n")
    assert chosen(tmp_path) == ("compiled (cometmq-core)", "")
    file.write_text("0" * 40)
    path, next_step = chosen(tmp_path)
    assert path == "Python (cometmq-core was built from other sources than these of cometmq)"
    assert "pip install --force-reinstall --no-deps cometmq cometmq-core" in next_step
    file.unlink()
    assert chosen(tmp_path)[0] == path


@pytest.mark.parametrize("room", ["src", "codec/src"])
def test_a_clone_whose_core_sources_changed_does_not_take_the_core_built_before(tmp_path: Path, room: str) -> None:
    package(tmp_path / "src")
    native = tmp_path / "native"
    shutil.copytree(SOURCES, native, ignore=shutil.ignore_patterns("target"))
    assert chosen(tmp_path / "src") == ("compiled (cometmq-core)", "")
    with (native / room / "lib.rs").open("a") as source:
        source.write("// one more line\n")
    path, next_step = chosen(tmp_path / "src")
    assert path.startswith("Python (cometmq-core was built from other sources")
    assert next_step == f"pip install --force-reinstall --no-deps {native}"


def test_line_ends_of_windows_change_nothing_and_names_count(tmp_path: Path) -> None:
    native = tmp_path / "native"
    shutil.copytree(SOURCES, native, ignore=shutil.ignore_patterns("target"))
    source = native / "src" / "lib.rs"
    source.write_bytes(source.read_bytes().replace(b"\n", b"\r\n"))
    assert sources_hash(native) == sources_hash(SOURCES) == CORE.SOURCES
    source.rename(source.with_name("other.rs"))
    assert sources_hash(native) != CORE.SOURCES


def test_python_runs_when_asked_for(tmp_path: Path) -> None:
    package(tmp_path)
    assert chosen(tmp_path, COMETMQ_CORE="python") == ("Python (COMETMQ_CORE=python)", "unset COMETMQ_CORE")
