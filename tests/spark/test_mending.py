"""After a test that was interrupted, or that has ended the JVM, the next one has a session that works."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.spark import mending

pytestmark = pytest.mark.spark


class OutOfTimeError(BaseException):
    """A test's time is over."""


IS_STOPPED = pytest.mark.xfail(raises=OutOfTimeError, strict=True, reason="it is interrupted")
JVMS: list[int] = []


def wait_for_ever(spark: Any, meanwhile: Callable[[], None]) -> None:
    """Wait for an answer of the JVM until a signal handler raises, as that of pytest-timeout does."""
    gate = spark._jvm.java.util.concurrent.Semaphore(0)

    def interrupt() -> None:
        while not gate.hasQueuedThreads():
            pass
        meanwhile()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def stop(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGUSR1, stop)
    other = threading.Thread(target=interrupt)
    other.start()
    try:
        gate.acquire()
    finally:
        other.join()
        signal.signal(signal.SIGUSR1, before)


@IS_STOPPED
def test_that_is_interrupted(spark: Any) -> None:
    JVMS[:] = [spark._sc._gateway.proc.pid]
    spark.readStream.format("rate").load().writeStream.format("noop").start()
    wait_for_ever(spark, lambda: None)


def test_that_comes_next_has_the_same_jvm(spark: Any) -> None:
    assert spark._sc._gateway.proc.pid == JVMS[0]
    assert spark.range(3).count() == 3
    assert spark.streams.active == []


@pytest.mark.crash
@IS_STOPPED
def test_that_is_interrupted_because_the_jvm_hangs(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mending, "ANSWER_SECONDS", 0.5)
    wait_for_ever(spark, lambda: os.kill(JVMS[0], signal.SIGSTOP))


@pytest.mark.crash
def test_that_comes_next_has_another_jvm(spark: Any) -> None:
    assert spark._sc._gateway.proc.pid != JVMS[0]
    assert spark.range(3).count() == 3
