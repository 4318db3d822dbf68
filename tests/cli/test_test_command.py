"""scripts/test: which failures are the tests' last word, and which for want of time; what a run leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers.run_directory import disk_notice
from tests.helpers.waiting import process_runs, wait_for

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
    for folder in ("broker/send", "broker/turn", "broker/pull", "spark"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    for module in ("test_golden_exchanges", "test_golden_store", "pull/test_pull"):
        (tmp_path / "tests" / "broker" / f"{module}.py").touch()
    shutil.copy(ROOT / "scripts" / "test", tmp_path / "scripts")
    (tmp_path / "tests" / "helpers").mkdir()
    for copied in ("pace.py", "run_directory.py", "crashed_workers.py"):
        shutil.copy(ROOT / "tests" / "helpers" / copied, tmp_path / "tests" / "helpers")
    parts = (ROOT / "tests" / "parts.toml").read_text(encoding="utf-8")
    (tmp_path / "tests" / "parts.toml").write_text(re.sub(r" -n \d ", " -n 2 ", parts), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text(MARKERS)
    return tmp_path


HANGS = """
import pathlib, signal, subprocess, sys, tempfile, pytest

@pytest.mark.interop
def test_hangs():
    this_is_where_it_hangs()

def this_is_where_it_hangs():
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    child = subprocess.Popen(command, start_new_session=True)
    place = tempfile.mkdtemp()
    pathlib.Path("child").write_text(f"{child.pid} {place}")
    signal.pause()
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Runs make their directories in one of the test."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "cargo").symlink_to(shutil.which("true") or "/bin/true")  # the project has no core
    return {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "TMPDIR": str(tmp_path / "tmp"),
    }


RunTests = Callable[..., subprocess.CompletedProcess[str]]
COMMAND = (sys.executable, "scripts/test", "--only-tests")
PROCESSES = ("--part", "interop and crash")


@pytest.fixture
def run_tests(project: Path, environment: dict[str, str]) -> RunTests:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *options],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    return run


def test_a_test_that_passes_only_alone_is_named_and_counted_once(project: Path, run_tests: RunTests) -> None:
    for name, mark in (("test_unit", ""), ("test_process", "interop"), ("spark/test_spark", "spark")):
        marked = FAILS_ONCE.replace("@pytest.mark.interop", mark and f"@pytest.mark.{mark}")
        (project / "tests" / f"{name}.py").write_text(marked)
    done = run_tests()
    assert done.returncode == 0, done.stdout
    named = (
        f"tests/{name}.py::test_is_slow_beside_others" for name in ("spark/test_spark", "test_process", "test_unit")
    )
    assert f"PASSED ONLY ALONE, look into them: {', '.join(named)}\n" in done.stdout
    assert "= 6 passed in" in done.stdout


def test_without_a_second_run_a_test_that_would_pass_alone_fails_the_run(project: Path, run_tests: RunTests) -> None:
    (project / "tests" / "test_process.py").write_text(FAILS_ONCE)
    done = run_tests(*PROCESSES, "--no-second-run")
    assert done.returncode == 1
    assert "= 1 failed, 1 passed in" in done.stdout


@pytest.mark.parametrize(("modules", "number", "runs"), [(3, 7, 2), (4, 1, 1)])
def test_what_fails_alone_too_or_in_many_modules_fails(
    project: Path, run_tests: RunTests, modules: int, number: int, runs: int
) -> None:
    for module in range(modules):
        (project / "tests" / f"test_fails_{module}.py").write_text(FAILS % number)
    done = run_tests(*PROCESSES)
    assert done.returncode == 1
    assert done.stdout.count("── interop and crash tests …") == runs
    assert "FAILED parts: interop and crash tests" in done.stdout
    assert f"= {modules * number} failed in" in done.stdout
    assert "PASSED ONLY ALONE" not in done.stdout


CRASHES = """
import os, pathlib, pytest, signal

pytestmark = pytest.mark.interop

def test_before():
    pass

def test_crashes():
    with pathlib.Path("crashes").open("a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)

def test_after():
    pass
"""


@pytest.mark.parametrize("crashing", [1, 4], ids=["one", "more than there are workers"])
def test_a_worker_that_crashes_fails_its_test_and_all_others_run(
    project: Path, run_tests: RunTests, crashing: int
) -> None:
    (project / "tests" / "conftest.py").write_text(
        "from tests.helpers.crashed_workers import pytest_xdist_make_scheduler\n"
    )
    others = 3
    for number in range(others):
        (project / "tests" / f"test_other_{number}.py").write_text(FAILS.replace("number < 0", "True") % 5)
    for number in range(crashing):
        (project / "tests" / f"test_crash_{number}.py").write_text(CRASHES)
    done = run_tests(*PROCESSES)
    assert done.returncode == 1
    for number in range(crashing):
        assert f"crashed while running 'tests/test_crash_{number}.py::test_crashes'" in done.stdout
    runs_again = crashing <= 3
    assert (project / "crashes").read_text() == "x" * crashing * (1 + runs_again)
    assert f"= {crashing} failed, {others * 5 + 2 * crashing} passed in" in done.stdout
    assert "PASSED ONLY ALONE" not in done.stdout


def test_a_process_that_is_killed_is_told_by_its_signal(project: Path, run_tests: RunTests) -> None:
    (project / "tests" / "broker" / "test_golden_store.py").write_text(CRASHES.replace("pytestmark", "mark"))
    done = run_tests("--part", "without the compiled core")
    assert done.returncode == 1
    assert "FAILED (killed by SIGKILL)" in done.stdout


def in_memory() -> list[Path]:
    """What runs have in memory, other runs too."""
    return list(Path("/dev/shm").glob("cometmq-test-*"))


def child_of(project: Path) -> tuple[int, Path]:
    """The process that the hanging test has started, and the directory that it has made."""
    process, place = (project / "child").read_text().split()
    return int(process), Path(place)


@pytest.mark.parametrize("limit", ["--part-minutes", "--run-minutes"])
def test_a_part_that_hangs_ends_with_its_stacks_and_without_its_processes(
    project: Path, run_tests: RunTests, limit: str
) -> None:
    (project / "tests" / "test_hangs.py").write_text(HANGS)
    minutes = 0.1
    done = run_tests(*PROCESSES, limit, str(minutes))
    while not (project / "child").exists():  # pytest itself took longer to start than the part had
        assert (done.returncode, minutes < 2) == (1, True), done.stdout
        minutes *= 2
        done = run_tests(*PROCESSES, limit, str(minutes))
    assert done.returncode == 1
    assert re.search(r"── interop and crash tests: FAILED \(not done in [\d.]+ minutes", done.stdout)
    assert "in this_is_where_it_hangs" in done.stdout
    assert "FAILED parts: interop and crash tests" in done.stdout
    process, place = child_of(project)
    assert not process_runs(process)
    assert not place.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_nothing(
    project: Path, environment: dict[str, str], run_tests: RunTests, number: signal.Signals
) -> None:
    (project / "tests" / "test_hangs.py").write_text(HANGS)
    temporary, before = Path(environment["TMPDIR"]), set(in_memory())
    with subprocess.Popen((*COMMAND, *PROCESSES), cwd=project, env=environment, stdout=subprocess.DEVNULL) as running:
        wait_for((project / "child").exists, "the test hangs")
        wait_for((project / "child").read_text, "it has told its child")
        running.send_signal(number)
    process, place = child_of(project)
    if number is signal.SIGKILL:
        assert process_runs(process)
        assert place.exists()
        (project / "tests" / "test_hangs.py").unlink()
        assert run_tests(*PROCESSES).returncode == 0, "the next run"
    assert not process_runs(process)
    assert list(temporary.iterdir()) == []
    assert set(in_memory()) <= before


def test_a_full_disk_is_told_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gigabyte = 10**9
    for used, free, told in ((50, 20, None), (100, 14, "14.0 GB free"), (180, 20, "90% full")):
        usage = shutil.disk_usage(tmp_path)._replace(total=(used + free) * gigabyte, used=used * gigabyte)
        monkeypatch.setattr(
            shutil, "disk_usage", lambda _, usage=usage, free=free: usage._replace(free=free * gigabyte)
        )
        notice = disk_notice(tmp_path) or ""
        assert (not notice) if told is None else (told in notice and "set TMPDIR" in notice)
