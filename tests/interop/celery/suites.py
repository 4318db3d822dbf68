"""Kombu's and Celery's own integration tests, unmodified, from their source distributions, against a broker.

    python -m tests.interop.celery.suites kombu --only cometmq
    python -m tests.interop.celery.suites celery [--only redis rabbitmq cometmq] [--files t/integration/test_tasks.py …]

Celery's whole suite takes half an hour on two processors, two thirds of it for ``test_canvas.py``.

Their tests may be tried again when they fail (``flaky``); here they may not.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop import builds
from tests.interop.celery.brokers import BROKERS, Broker, Redis, started
from tests.interop.celery.workers import SOURCE

RUN_S: Final = 3600.0
NOT_OF_A_BROKER: Final = {
    "t/integration/test_backend.py": "needs Azure's storage",
    "t/integration/test_cache_backend.py": "needs memcached",
    "t/integration/test_connection_recovery.py": "pauses connections of Redis",
    "t/integration/test_redis_backend.py": "is about results, which stay in Redis",
    "t/integration/test_database_backend.py": "is about results",
    "t/integration/test_backend_leak_in_fixture_teardown.py": "is about results",
    "t/integration/test_events_state_memory_leak.py": "uses the broker in memory",
    "t/integration/test_request_backend_down.py": "uses the broker in memory",
    "t/integration/test_logfile_format.py": "needs no broker",
}
"""Files that say nothing of a broker, with the reason."""
CANVAS: Final = "t/integration/test_canvas.py::"
NOT_OF_OURS: Final = {
    "t/integration/test_inspect.py::test_Inspect::test_scheduled": (
        "wants a task with a time in the worker's memory; the broker holds it until then"
    ),
    "t/integration/test_tasks.py::test_task_replacement::test_replaced_task_nesting_level_0": (
        "resets its variable after the task is sent; here the worker of its process has the task before that"
    ),
    f"{CANVAS}test_chord::test_group_or_task_countdown_delays_header": (
        "wants the ETA of a task that has come at its ETA, which has none then"
    ),
    f"{CANVAS}test_chain::test_chord_header_id_duplicated_on_rabbitmq_msg_duplication": (
        "publishes with a property that is no text and no number, which AMQP drops; Celery excepts Redis here"
    ),
}
"""Tests that cannot hold here, with the reason."""
NOT_HERE: Final = {
    "t/integration/test_tasks.py::test_tasks::test_revoked_by_headers_complex_canvas": "needs more than its 20 seconds",
    "t/integration/test_worker.py::test_pidbox_reset_after_repeated_control_errors": "fails behind Django's tests",
    f"{CANVAS}test_chord::test_chord_on_error": "finds no results of the header",
    "t/integration/test_mem_leak_in_exception_handling.py::test_mem_leak_unhandled_exceptions": (
        "measures the memory of its whole process, in which a worker runs; sends nothing"
    ),
}
"""Tests that fail with Redis as well when they are not tried again, with the reason."""
NOT_OF_KOMBU: Final = {
    "test_Priority::test_simple_buffer_publish_consume": "a queue of one process has no priorities",
    "test_Failover::test_failover_switches_to_alternate_url": "all nameservers of a URL are used from the beginning",
}
"""Kombu's tests that cannot hold here, with the reason."""


@dataclass(frozen=True)
class Outcome:
    """How a run of a suite ended."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    text: str

    @classmethod
    def of(cls, text: str) -> Outcome:
        """Read the last line of pytest."""
        last = text.rstrip().rpartition("\n")[2]
        found = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|error|skipped)", last)}
        seconds = re.findall(r" in ([\d.]+)s", last)
        if not found or not seconds:
            raise RuntimeError(f"the suite did not run: {text[-3000:]}")
        failed = found.get("failed", 0) + found.get("error", 0)
        return cls(found.get("passed", 0), failed, found.get("skipped", 0), float(seconds[-1]), text)


def _pytest(suite: Path, arguments: Sequence[str], **more: str) -> Outcome:
    """Run pytest in a source distribution, with this tree's CometMQ and the client of Redis."""
    kit = Path(__file__).parent
    path = [suite, SOURCE, builds.celery_suites() / "lib", kit / "registered"]
    programs = [str(Path(sys.executable).parent), os.environ["PATH"]]
    told = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PATH": os.pathsep.join(programs)}
    environment = {**os.environ, **told, "PYTHONDONTWRITEBYTECODE": "1", **more}
    quiet = [
        "-p",
        "no:asyncio",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:cometmq.pytest_plugin",
        "-p",
        "no:rerunfailures",
        "-q",
        "-rfEs",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"--rootdir={suite}", *quiet, "--tb=short", *arguments],
        cwd=suite,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    return Outcome.of(done.stderr + done.stdout)


def run_kombu(broker: Broker, *arguments: str) -> Outcome:
    """Kombu's tests of a transport."""
    suite = builds.celery_suites() / "kombu"
    cases = Path(__file__).parent / "kombu_cases.py"
    order = {"KOMBU_PROOF_PRIORITIES": "desc"} if isinstance(broker, Redis) else {}
    config = ["-c", str(suite / "setup.cfg"), "--noconftest"]
    apart = [f"not ({name.replace('::', ' and ')})" for name in NOT_OF_KOMBU] if broker.key == "cometmq" else []
    chosen = ["-k", " and ".join(apart)] if apart else []
    return _pytest(suite, [*config, str(cases), *chosen, *arguments], KOMBU_PROOF_URL=broker.url, **order)


def run_celery(broker: Broker, results: Redis, *arguments: str) -> Outcome:
    """Celery's tests, with results in Redis; all files that say something of a broker unless some are named."""
    suite = builds.celery_suites() / "celery"
    files = [one for one in arguments if not one.startswith("-")]
    if not files:
        every = sorted((suite / "t" / "integration").glob("test_*.py"))
        files = [name for path in every if (name := path.relative_to(suite).as_posix()) not in NOT_OF_A_BROKER]
    options = [one for one in arguments if one.startswith("-")]
    apart = [f"--deselect={name}" for name in (*NOT_HERE, *(NOT_OF_OURS if broker.key == "cometmq" else ()))]
    return _pytest(
        suite,
        ["-c", str(suite / "pyproject.toml"), "-p", "celery.contrib.pytest", *files, *options, *apart],
        TEST_BROKER=broker.url,
        TEST_BACKEND=f"redis://127.0.0.1:{results.port}/1",
        REDIS_HOST="127.0.0.1",
        WORKER_LOGLEVEL="INFO",  # as Celery's own runs have it: tests look into the log
        REDIS_PORT=str(results.port),
    )


@contextmanager
def results_in_redis(directory: Path) -> Iterator[Redis]:
    """A server of Redis for results."""
    with started("redis", directory / "results") as results:
        assert isinstance(results, Redis)
        yield results


def main() -> None:
    """Run a suite against brokers in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["kombu", "celery"])
    parser.add_argument("--only", nargs="+", choices=list(BROKERS), default=["cometmq"])
    parser.add_argument("--files", nargs="*", default=[], help="files, tests, and options of pytest (as --files=-x)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-suites-") as name, results_in_redis(Path(name)) as results:
        for key in given.only:
            with started(key, Path(name) / key) as broker:
                if given.suite == "kombu":
                    outcome = run_kombu(broker, *given.files)
                else:
                    outcome = run_celery(broker, results, *given.files)
            print(outcome.text)
            print(f"{broker.version()}: {outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped")


if __name__ == "__main__":
    main()
