"""Revocation of tasks that wait in the broker, from many threads of one process."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chord
from celery.exceptions import ChordError, TaskRevokedError

import cometmq.integrations.kombu  # noqa: F401
from cometmq.testing import SyncCluster

PATIENCE_S = 30.0
pytestmark = pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Celery closes no connection for the results of a thread that has ended; they are collected before other tests."""
    yield
    gc.collect()


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


@pytest.mark.parametrize("is_known", [True, False])
def test_a_chord_fails_when_one_of_its_tasks_is_recalled(cluster: SyncCluster, name: str, is_known: bool) -> None:
    """celery#10526: it waited for ever."""
    app = Celery(
        "chord", broker=f"cometmq://{cluster.namesrv_address}", backend="cache+memory://", set_as_current=False
    )
    app.conf.update(task_default_queue=name, broker_transport_options={"send_timeout": 6})
    part = app.signature("part").set(countdown=3600)
    result: Any = chord([part], app=app)(app.signature("end"))
    if not is_known:
        forget_handles(app)
    result.parent.results[0].revoke()
    with pytest.raises(ChordError, match="revoked"):
        app.AsyncResult(result.id).get(timeout=PATIENCE_S)  # the other result also raises the error of its parent
    app.close()


def forget_handles(app: Celery) -> None:
    """Let this process not know how to recall tasks, as if another one had sent them."""
    with app.connection_for_write() as connection:
        connection.connect()
        connection.transport.session.inner._handles.clear()
