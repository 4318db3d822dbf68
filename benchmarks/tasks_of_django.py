"""Measures tasks of Django: how many are enqueued and run in a second; one line a case.

    python -m benchmarks.tasks_of_django [--tasks 2000]

A broker, the process that enqueues and the worker share the machine. Results are in SQLite (write-ahead log, one
connection kept) or are not stored. The project is that of the tests.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from typing import Any, Final

from cometmq.clock import SYSTEM_CLOCK
from cometmq.testing import SyncCluster

BACKENDS: Final = {"default": "results in SQLite", "plain": "no results"}
SQLITE: Final = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"


def main() -> None:
    """Start a broker, and a process for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=2_000)
    parser.add_argument("--case", nargs=2, metavar=("BACKEND", "THREADS"), help="one case in this process: 0 enqueues")
    given = parser.parse_args()
    if given.case:
        measure(given.case[0], int(given.case[1]), given.tasks)
        return
    with SyncCluster() as cluster, tempfile.TemporaryDirectory(prefix="cometmq-bench-") as directory:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.integrations.django.project.settings",
            "NAMESRV_ADDR": cluster.namesrv_address,
            "TASKS_DATABASE": f"{directory}/tasks.sqlite3",
        }
        for backend in BACKENDS:
            for threads in ("0", "1", "0", "4"):
                command = [sys.executable, "-m", "benchmarks.tasks_of_django", "--tasks", str(given.tasks)]
                subprocess.run([*command, "--case", backend, threads], env=environment, check=True)


def measure(backend: str, threads: int, count: int) -> None:
    """Enqueue tasks, or run them in threads, and print how long it took."""
    import django
    from django.conf import settings

    settings.DATABASES["default"] |= {"CONN_MAX_AGE": 600}
    settings.DATABASES["default"]["OPTIONS"]["init_command"] = SQLITE
    django.setup()
    from django.core.management import call_command
    from tests.integrations.django.project.tasks import add

    from cometmq.integrations.django.api import task_backends
    from cometmq.integrations.django.worker import Worker, WorkerSettings

    call_command("migrate", verbosity=0)
    task: Any = add.using(backend=backend)
    if threads:
        worker = Worker(task_backends[backend], WorkerSettings(queues=("default",), threads=threads, max_tasks=count))
    begun, used = SYSTEM_CLOCK.monotonic(), processor_s()
    if threads:
        worker.run()
    else:
        for number in range(count):
            task.enqueue(number, 1)
    took, used = SYSTEM_CLOCK.monotonic() - begun, processor_s() - used
    done = f"run by {threads} threads" if threads else "enqueued"
    print(
        f"{BACKENDS[backend]}: {count / took:,.0f} tasks/s {done}, {used / count * 1e6:,.0f} us of processor time each"
    )


def processor_s() -> float:
    """Return the processor time of this process in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
