"""A time limit of a task, or a signal, may interrupt it while it sends another one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from queue import Empty

import pytest
from kombu import Connection
from tests.helpers.waiting import wait_for

import cometmq.integrations.kombu  # noqa: F401
from cometmq.testing import Direction, SyncCluster


class LimitError(Exception):
    """Raised by a signal handler, as Celery raises ``SoftTimeLimitExceeded``."""


def stored_bytes(cluster: SyncCluster) -> int:
    return cluster.run(lambda running: running.broker(0).store.max_physical_offset)


@contextmanager
def interrupted_when_stored(cluster: SyncCluster) -> Iterator[None]:
    """Interrupt this thread as soon as the broker has stored something, and let no answer of the broker arrive."""
    before = stored_bytes(cluster)

    def interrupt() -> None:
        wait_for(lambda: stored_bytes(cluster) > before, "the broker stores a message")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def handler(*_: object) -> None:
        raise LimitError

    previous = signal.signal(signal.SIGUSR1, handler)
    cluster.run(lambda running: running.link(0).drop(Direction.TO_CLIENT))
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(LimitError):
            yield
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, previous)
        cluster.run(lambda running: running.link(0).restore())


@pytest.mark.parametrize("is_delayed", [False, True])
def test_a_task_that_is_sent_again_after_an_interruption_is_stored_once(is_delayed: bool) -> None:
    options = {"send_timeout": 30}
    with (
        SyncCluster(links=True) as cluster,
        Connection(f"cometmq://{cluster.namesrv_address}", transport_options=options) as connection,
    ):
        queue = connection.SimpleQueue("interrupted")
        eta = datetime.now(UTC) + timedelta(seconds=6 if is_delayed else -1)
        headers = {"id": "some-task", "task": "add", "retries": 0, "eta": eta.isoformat()}
        queue.put("first", headers={**headers, "id": "first"})  # the client knows what the broker can do from now on
        with interrupted_when_stored(cluster):
            queue.put("task", headers=headers)
        queue.put("task", headers=headers)
        assert sorted(queue.get(timeout=20).payload for _ in range(2)) == ["first", "task"]
        with pytest.raises(Empty):
            queue.get(timeout=0.3)
