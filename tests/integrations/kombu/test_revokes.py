"""Revocation of tasks that wait in the broker, from many threads of one process."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import TaskRevokedError

import cometmq.integrations.kombu  # noqa: F401
from cometmq.testing import SyncCluster

PATIENCE_S = 30.0


@pytest.mark.parametrize("threads", [5, 8])
def test_threads_that_revoke_at_the_same_time_do_not_wait_for_each_others_connections(
    cluster: SyncCluster, name: str, threads: int
) -> None:
    """Each thread holds two of the ten connections in Celery's pool while it publishes, and the results need more."""
    address = f"cometmq://{cluster.namesrv_address}"
    app = Celery("revoking", broker=address, backend="rpc://", set_as_current=False)
    app.conf.task_default_queue = name
    waiting = [[app.send_task("task", countdown=3600) for _ in range(8)] for _ in range(threads)]
    together = threading.Barrier(threads)

    def revoke(results: list[Any]) -> None:
        together.wait(PATIENCE_S)
        app.control.revoke([result.id for result in results])

    running = [threading.Thread(target=revoke, args=[results], daemon=True) for results in waiting]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in running), "the threads wait for each other"
    for result in [result for results in waiting for result in results]:
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
    app.close()
