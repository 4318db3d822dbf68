"""Mends the tests' session of Spark when a test has left it unusable, so that no other test fails for that.

A test that takes too long is interrupted by an exception from a signal handler, most often while py4j waits for an
answer. The next call of this thread would get that answer in place of its own, and so would each one after it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.helpers.pace import slowness

PARTITIONS = 2
"""Of a shuffle."""
ANSWER_SECONDS = 30.0
"""How long a JVM is asked before it counts as hanging."""


def mend(item: pytest.Item) -> None:
    """Make the session work again, or have the next test that needs one start another."""
    from cometmq.spark.session.interruption import activate

    definitions = item.session._fixturemanager.getfixturedefs("spark", item)
    if not definitions or (made := definitions[-1].cached_result) is None:
        return
    session: Any = made[0]
    failure = made[2]
    if failure is None and _works(session):
        activate(session)
        session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))  # a job sets its own, which are more
        return
    if failure is not None and isinstance(failure[0], pytest.skip.Exception):
        return
    end_jvm()
    with contextlib.suppress(Exception):
        definitions[-1].finish(item._request)  # type: ignore[attr-defined]  # what was made with it, too
    _forget()


def _works(session: Any) -> bool:
    from cometmq.spark.session.interruption import drop_interrupted_call, ensure_in_step

    def is_running() -> bool:
        return not session.sparkContext._jsc.sc().isStopped()

    def end_work() -> bool:
        session.sparkContext.cancelAllJobs()
        for query in session.streams.active:
            query.stop()
        return is_running()

    if not drop_interrupted_call():
        with contextlib.suppress(Exception):
            ensure_in_step()
            return is_running()
        return False
    return _answered(end_work)


def _answered(ask: Callable[[], bool]) -> bool:
    """Ask in a thread, which has a connection of its own: a JVM that hangs answers nothing."""
    answers: list[bool] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            answers.append(ask())

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    asking.join(ANSWER_SECONDS * slowness())
    return answers == [True]


def end_jvm() -> None:
    """Kill the JVM of this process, if there is one."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is not None:
        process.kill()
        process.communicate()


def _forget() -> None:
    """Have PySpark start another JVM for the next session."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:
        with contextlib.suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
