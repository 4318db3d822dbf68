"""A queue whose files are read slowly delays no other queue, however many consumers it has."""

from __future__ import annotations

import threading
from functools import partial

from cometmq.tier.limits import READING_THREADS, THREADS_OF_QUEUE
from cometmq.tier.shares import SharedThreads

PATIENCE_S = 30.0


def test_a_queue_that_is_stuck_leaves_threads_for_others() -> None:
    threads, goes_on = SharedThreads(), threading.Event()
    done: list[int] = []
    ended = threading.Semaphore(0)

    def stuck(number: int) -> None:
        goes_on.wait(PATIENCE_S)
        done.append(number)
        ended.release()

    for number in range(100):
        threads.submit(("slow", 0), partial(stuck, number))
    for number in range(100, 120):
        others = threading.Event()
        threads.submit(("other", number), others.set)
        assert others.wait(PATIENCE_S)
    assert done == []
    goes_on.set()
    for _ in range(100):
        assert ended.acquire(timeout=PATIENCE_S)
    assert sorted(done) == list(range(100))
    assert THREADS_OF_QUEUE < READING_THREADS


def test_work_that_fails_does_not_stop_its_queue() -> None:
    threads, ended = SharedThreads(), threading.Semaphore(0)

    def fail() -> None:
        ended.release()
        raise ValueError

    for _ in range(20):
        threads.submit(("orders", 0), fail)
    for _ in range(20):
        assert ended.acquire(timeout=PATIENCE_S)
