"""scripts/setup, the Makefile and scripts/test: what a person with a fresh clone meets."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "dirname", "sed", "grep", "cksum", "cat", "df", "awk", "tail", "rm", "id", "env", "printf")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files that set-up looks at, without a .venv."""
    place = tmp_path / "clone"
    (place / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", place / "scripts")
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH with the system's small tools only."""
    place = tmp_path / "bin"
    place.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found is not None:
            (place / tool).symlink_to(found)
    return place


def script(place: Path, name: str, text: str) -> None:
    (place / name).write_text(f"#!/bin/sh\n{text}\n")
    (place / name).chmod(0o755)


def set_up(clone: Path, path: Path, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHON")}
    return subprocess.run(
        ["sh", "scripts/setup", "demo"],
        cwd=clone,
        env={**kept, "PATH": str(path), **more},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_no_java_and_no_way_to_install_it(clone: Path, tools: Path) -> None:
    failed = set_up(clone, tools)
    assert failed.returncode == 1
    assert "Spark needs Java 17 or newer and it could not be installed here" in failed.stderr
    assert "sudo apt install openjdk-17-jre-headless" in failed.stderr


def test_old_java_is_not_enough(clone: Path, tools: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    assert "Spark needs Java 17" in set_up(clone, tools).stderr


def test_java_home_that_hides_a_newer_java(clone: Path, tools: Path, tmp_path: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    (tmp_path / "jdk8" / "bin").mkdir(parents=True)
    script(tmp_path / "jdk8" / "bin", "java", "echo 'java version \"1.8.0_392\"' >&2")
    assert "Run: unset JAVA_HOME" in set_up(clone, tools, JAVA_HOME=str(tmp_path / "jdk8")).stderr


def test_java_is_installed_where_the_package_manager_may(clone: Path, tools: Path) -> None:
    script(tools, "id", "echo 0")
    script(tools, "packaged-java", "echo 'openjdk version \"17.0.1\"' >&2")
    copy = f"{shutil.which('cp')} {tools / 'packaged-java'} {tools / 'java'}"
    script(tools, "apt-get", f'case "$*" in *install*openjdk-17*) {copy} ;; esac')
    failed = set_up(clone, tools)
    assert "asking the system's package manager" in failed.stderr
    assert "Python 3.11 or newer is needed" in failed.stderr, "Java is there now, so Python is looked for"


def test_no_python(clone: Path, tools: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    script(tools, "python3", "exit 1")
    failed = set_up(clone, tools)
    assert failed.returncode == 1
    assert "Python 3.11 or newer is needed and was not found" in failed.stderr
    assert "PYTHON=" in failed.stderr


def test_no_disk_room(clone: Path, tools: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    (tools / "df").unlink()
    script(tools, "df", "echo Filesystem; echo '/dev/x 100 90 10 90% /'")
    failed = set_up(clone, tools)
    assert failed.returncode == 1
    assert "only 10 MB are free" in failed.stderr


def test_no_venv_module(clone: Path, tools: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    script(tools, "python3", 'case "$*" in *venv*) exit 1 ;; *) echo 900 ;; esac')
    failed = set_up(clone, tools)
    assert failed.returncode == 1
    assert "sudo apt install python3-venv" in failed.stderr


@pytest.mark.parametrize(("needed", "taken"), [(799, "other"), (800, "bin")])
def test_the_newest_python_is_taken_unless_another_is_much_faster(
    clone: Path, tools: Path, tmp_path: Path, needed: int, taken: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    script(tools, "python3.12", 'case "$*" in *venv*) exit 1 ;; *) echo 1000 ;; esac')
    script(other, "python3", f'case "$*" in *venv*) exit 1 ;; *) echo {needed} ;; esac')
    assert f"/{taken}/python3" in set_up(clone, tools, PATH=f"{tools}:{other}").stderr


def test_failed_installation_shows_why(clone: Path, tools: Path) -> None:
    script(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
    # A new environment takes pip from Python's own packages: to put it there takes 6 s.
    quick = f'*"-m venv "*) exec {sys.executable} -m venv --without-pip --system-site-packages "$3" ;;'
    script(tools, "python3", f'case "$*" in {quick} esac\nexec {sys.executable} "$@"')
    no_network = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
    failed = set_up(clone, tools, **no_network)
    assert failed.returncode == 1
    assert "pip could not install the packages" in failed.stderr
    assert "install.log" in failed.stderr


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("demo", "test", "lint", "bench", "clean", "help"):
        assert f"make {target}" in shown
