"""A signal handler that raises while a call of the JVM is under way: the session goes on as if it had not been made."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from tests.spark.topics import Topics

from cometmq.spark.session.environment import driver_session
from cometmq.spark.session.interruption import drop_interrupted_call

pytestmark = pytest.mark.spark


class StoppedError(BaseException):
    """Raised as SystemExit is by a handler of SIGTERM, and a failure by a test's time limit."""


def stop(*_: object) -> None:
    raise StoppedError


@contextlib.contextmanager
def signalled(spark: Any, handler: Callable[..., None]) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """Yield a call of the JVM, in which the handler runs, and what ends it; it ends with the block at last."""
    gate = spark._jvm.java.util.concurrent.Semaphore(0)
    leave = threading.Event()

    def interrupt() -> None:
        while not gate.hasQueuedThreads():
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        leave.wait()
        gate.release()

    before = signal.signal(signal.SIGUSR1, handler)
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        yield gate.acquire, leave.set
    finally:
        leave.set()
        other.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_session_is_used_on_when_a_job_was_interrupted(spark: Any) -> None:
    with signalled(spark, stop) as (call, _), pytest.raises(StoppedError) as kept, driver_session(spark, "", ""):
        call()
    assert spark.range(3).count() == 3
    assert kept.traceback, "which keeps py4j's connection alive, as a notebook does"


@pytest.mark.parametrize("calls", [0, 1])
def test_a_job_begins_when_its_caller_was_interrupted(spark: Any, calls: int) -> None:
    """Whether or not the caller has called anything since, and got the answer of another call."""
    with signalled(spark, stop) as (call, _), pytest.raises(StoppedError) as kept:
        call()
    for _ in range(calls):
        with pytest.raises(Py4JError, match="java does not exist"):
            spark._jvm.java  # noqa: B018
    with driver_session(spark, "", "") as session:
        assert session.range(3).count() == 3
    assert kept.traceback


def test_a_call_that_goes_on_behind_a_signal_keeps_its_connection(spark: Any) -> None:
    dropped: list[bool] = []

    def handler(*_: object) -> None:
        dropped.append(drop_interrupted_call())
        end()

    with signalled(spark, handler) as (call, end):
        call()
    assert dropped == [False]
    assert spark.range(3).count() == 3


def test_a_job_of_a_thread_finds_the_sink(spark: Any, topics: Topics) -> None:
    """Whose connection is new, as after an interruption."""
    topic = topics.create(queues=1)

    def write() -> None:
        with driver_session(spark, "", "") as session:
            sink = session.range(1).selectExpr("'x' AS valu").write.format("rocketmq").mode("append")
            sink.options(namesrvAddr=topics.namesrv, topic=topic).save()

    with ThreadPoolExecutor(1) as thread, pytest.raises(Exception, match="did you mean value"):
        thread.submit(write).result()
