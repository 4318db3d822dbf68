"""Files for pytest-xdist's workers, so that the crash of a worker is one failed test and all others still run.

pytest-xdist's own ``loadfile`` does not survive it. It gives the file back with the test that has crashed the worker,
which then crashes the next one. It gives work to workers that have not collected yet, and ends with a KeyError. And a
worker begins a test only when it knows the one after it, or that there is none: one that comes later, and gets a single
test or the last file, is told neither, so that both wait for ever.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_STORAGES = frozenset(
    {
        "tests/archive/test_chain.py",
        "tests/spark/archives/test_delta_in_stores.py",
        "tests/spark/jobs/archive/test_object_stores.py",
        "tests/spark/jobs/test_places.py",
        "tests/spark/store/test_stored_everywhere.py",
        "tests/storage/test_storage.py",
    }
)
"""Files that run in one worker: they share servers of storages, HDFS among them, and to start these takes ten seconds
of processor time."""


class FilesOfCrashedWorkers(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """A file's tests in one worker; those that a crashed worker leaves go to another one."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return "files with storages" if file in WITH_STORAGES else file

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker; the test that it was at if it has crashed, which does not run again."""
        workload = self.assigned_work.pop(node)
        left = [(scope, test) for scope, unit in workload.items() for test, done in unit.items() if not done]
        if not left:
            return None
        crashed_in, crashed_at = left[0]
        workload[crashed_in][crashed_at] = True
        self.workqueue.update((scope, workload[scope]) for scope, _ in left if not all(workload[scope].values()))
        self._feed()
        return str(crashed_at)

    def schedule(self) -> None:
        """Give work to all workers."""
        if self.collection is None:
            super().schedule()
        self._feed()

    def _assign_work_unit(self, node: WorkerController) -> None:
        with suppress(OSError):  # it has crashed, which nobody has told yet; then its tests are given back
            super()._assign_work_unit(node)

    def _feed(self) -> None:
        """Give each worker two tests, or tell it that there are no more."""
        workers = [node for node in self.nodes if node in self.registered_collections and not node.shutting_down]
        for node in workers:
            while self.workqueue and self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)
        if not self.workqueue:
            for node in workers:
                node.shutdown()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesOfCrashedWorkers | None:
    """With ``--dist loadfile`` the tests go on when a worker crashes."""
    return FilesOfCrashedWorkers(config, log) if config.option.dist == "loadfile" else None
