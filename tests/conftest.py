"""Fixtures and settings of all tests."""

from __future__ import annotations

import gc
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Generator, Iterator
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from tests.helpers import forks
from tests.helpers.crashed_workers import WITH_STORAGES
from tests.helpers.crashed_workers import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.interop import systems
from tests.storage.fixtures import s3 as s3
from tests.storage.fixtures import servers as servers
from tests.storage.fixtures import storage as storage

from cometmq.core import NEXT_STEP, PATH
from cometmq.testing import VirtualClock
from cometmq.testing.cluster_keys import SMALL_STORE
from cometmq.testing.processes import ServerProcess

# How long one example takes says more of the machine than of the code; pytest's timeout bounds every test.
settings.register_profile("cometmq", deadline=None)
settings.load_profile("cometmq")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has it ignored, and so would the commands that they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # By nohup. Servers that start so keep it so, and the tests that send it to them would wait in vain.
    signal.signal(signal.SIGHUP, lambda *_: None)

if sys.version_info < (3, 12):
    # asyncio.run asks for the handler of SIGINT. Python 3.11 looks for it among the numbers that are handlers, and the
    # error describes the task, what it awaits, and so on: often a broker with all its tables.
    def _handler(value: Any, numbers: Any, convert: Any = signal._int_to_enum) -> Any:  # type: ignore[attr-defined]
        return convert(value, numbers) if isinstance(value, int) else value

    signal._int_to_enum = _handler  # type: ignore[attr-defined]

systems.FILES.update(systems.SMALL_FILES)
SMALL_STORE["mappedFileSizeCommitLog"] = str(5 * 1024 * 1024)  # see tests/broker/conftest.py
systems.Server.popen = ServerProcess.popen = staticmethod(forks.start)

GOLDEN = Path(__file__).parent / "golden"

SPARK = Path(__file__).parent / "spark"
LONG = (
    "spark/cluster/test_standalone.py",
    "spark/docs/test_code_blocks.py",
    "spark/sink/test_writer.py",
    "spark/jobs/archive/test_job.py",
    "spark/jobs/archive/test_formats.py",
    "spark/jobs/replay/test_job.py",
    "spark/jobs/test_delay.py",
    "spark/session/test_connect.py",
    "spark/jobs/mask/test_job.py",
    "spark/jobs/test_audit.py",
    "spark/jobs/archive/test_object_stores.py",
    "interop/celery/test_reports.py",
    "interop/celery/test_suites.py",
    "interop/five/test_clients.py",
    "interop/delay/test_delay_and_retry.py",
    "interop/messages/test_transactions.py",
    "client/test_broken_brokers.py",
    "interop/store/test_store_swap.py",
    "interop/peers/test_mqadmin.py",
    "spark/sink/test_kills.py",
    "interop/delay/test_any_delay.py",
    "interop/store/test_damaged_store.py",
    "interop/filter/test_filters.py",
    "spark/access/test_access_apache.py",
    "failover/nemesis/test_nemesis.py",
    "examples/test_demo.py",
    "interop/access/test_policies.py",
    "storage/test_storage.py",
    "spark/records/test_memory.py",
    "test_docs_site.py",
    "broker/transaction/test_crashes.py",
    "cli/servers/test_servers.py",
    "benchmarks/test_scale.py",
    "deploy/test_extras.py",
    "fuzz/test_no_request_stops_the_others.py",
    "store/recovery/test_damaged_log.py",
    "client/sync/test_sync_exit.py",
    "cli/test_test_command.py",
    "testing/test_pytest_plugin.py",
    "cli/admin/test_broker_drain.py",
    "store/recovery/test_recovery.py",
    "client/consumer/test_ordered_machine.py",
)
"""The files that work longest, the longest first; one of them builds for minutes where nothing is built yet."""
for _name in (*LONG, *(file.removeprefix("tests/") for file in WITH_STORAGES)):
    assert (Path(__file__).parent / _name).exists(), f"{_name} has moved: change LONG or WITH_STORAGES"


IN_PROCESSES = frozenset({"interop", "crash"})
"""Markers of tests that start processes, or real clients and brokers."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not read files without a test that is asked for: each process of ``-m "interop or crash"`` reads a fifth.

    And each process of ``-m "not interop and not crash"`` leaves out those whose tests are all of these.
    """
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    wanted = config.option.markexpr
    if {term.partition(" and ")[0] for term in wanted.split(" or ")} <= IN_PROCESSES:
        return not _marks_processes(collection_path) or None
    terms = wanted.split(" and ")
    if all(term.startswith("not ") for term in terms):
        return not {term.removeprefix("not ") for term in terms}.isdisjoint(_marks_of_all(collection_path)) or None
    return None


def _marks_of_all(file: Path) -> set[str]:
    """The markers that a line of a file gives to all its tests."""
    line = re.search(r"^pytestmark = .*", file.read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.findall(r"pytest\.mark\.(\w+)", line[0] if line else ""))


@cache
def _marks_processes(file: Path) -> bool:
    """Whether a file, or a ``conftest.py`` beside or above it, names one of those markers."""
    if not file.is_relative_to(Path(__file__).parent):
        return True  # another project's: nobody checks its markers below
    above = [parent / "conftest.py" for parent in file.parents if parent.is_relative_to(Path(__file__).parent)]
    texts = [place.read_text(encoding="utf-8") for place in (file, *above) if place.exists()]
    return any(f"pytest.mark.{marker}" in text for marker in IN_PROCESSES for text in texts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Read all files without looking for garbage, and never look through what is read again: tests are not garbage.

    Each search through everything would take a third of a second more, for as long as the tests run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files begin first: one that begins last is waited for while other processors have nothing to do.

    pytest-xdist's own order, by the number of tests in a file, puts them last.
    """
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(place)))
    for item in items:
        in_processes = any(map(item.get_closest_marker, IN_PROCESSES))
        if in_processes and not _marks_processes(item.path):
            raise pytest.UsageError(f"{item.nodeid}: name its marker in its file, or in a conftest.py")
        alone = item.get_closest_marker("spark") and not item.get_closest_marker("interop")
        if alone and not item.path.is_relative_to(SPARK):
            raise pytest.UsageError(f"{item.nodeid}: scripts/test looks for such tests of Spark in {SPARK} only")


def pytest_report_header() -> str:
    """Tests of the compiled core are skipped without it, so say why it is not there."""
    return f"code for plain sends: {PATH}" + (f"; for the compiled core: {NEXT_STEP}" if NEXT_STEP else "")


@lru_cache(maxsize=2)
def _json_lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that only the test moves."""
    return VirtualClock()


@pytest.fixture(scope="session")
def golden() -> Path:
    """Stores and frames recorded from real Apache RocketMQ 4.9.7; see golden/README.md."""
    return GOLDEN


@pytest.fixture(scope="session")
def golden_frames() -> list[dict[str, Any]]:
    """Recorded frames, one map each, in the order they were seen."""
    return _json_lines(GOLDEN / "wire" / "frames.jsonl.gz")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser; tests with it are left out where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (--group dev)")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no Chromium (apt-get install chromium)")
    with warnings.catch_warnings(), playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        with suppress(Exception):
            started.close()
