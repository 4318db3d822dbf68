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


def test_threads_that_have_the_same_number_one_after_the_other_get_their_results(
    cluster: SyncCluster, name: str
) -> None:
    """Celery names the queue of a thread's results after its number; the earlier thread's consumer is not closed."""
    app = Celery("in turn", broker=f"cometmq://{cluster.namesrv_address}", backend="rpc://", set_as_current=False)
    app.conf.task_default_queue = name
    queues: list[str] = []
    revoked: list[str] = []

    def revoke() -> None:
        result: Any = app.send_task("task", countdown=3600)
        result.revoke()
        queues.append(app.thread_oid)
        with pytest.raises(TaskRevokedError):
            result.get(timeout=PATIENCE_S)
        revoked.append(result.id)

    for _ in range(5):
        thread = threading.Thread(target=revoke)
        thread.start()
        thread.join()
    assert len(set(queues)) < len(queues)
    assert len(revoked) == len(queues)
    app.close()


def test_a_state_that_cannot_be_stored_is_named(
    cluster: SyncCluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("closed", broker=f"cometmq://{cluster.namesrv_address}", backend="rpc://", set_as_current=False)
    app.conf.update(task_default_queue=name, broker_transport_options={"send_timeout": 4})
    waiting: Any = app.send_task("task", countdown=3600)
    app.close()
    waiting.revoke()
    assert "no application of Celery has their broker" in caplog.text
