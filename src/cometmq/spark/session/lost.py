"""Handles sessions that end while in use: replaces the errors from py4j and Spark with a sentence and the next step.

After the JVM is killed, the connection for any py4j call may be refused or closed, even when the call stops the
session. If a master dies, or somebody kills the application on the master, the session stops but the JVM keeps running.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from cometmq.spark.errors import SparkSourceError
from cometmq.spark.session.interruption import drop_interrupted_call, ensure_in_step

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_EXIT_SECONDS: Final = 2.0
"""Maximum time until a JVM process ends after its connections were closed."""
_AGAIN: Final = "run the same command again: a job that writes continues, and a job that only reads starts again"


class SessionLostError(SparkSourceError):
    """The Spark session ended while it was in use, or before that."""


@contextlib.contextmanager
def says_when_lost() -> Iterator[None]:
    """If the session has ended, replace any failure in the block with an error that says so in one sentence.

    If a signal handler has ended the block, the session can be used again: see :func:`drop_interrupted_call`.

    :raises SessionLostError: the JVM has ended, or the session is stopped.
    """
    try:
        yield
    except Exception as error:
        if (lost := _lost(error)) is not None:
            raise lost from error
        raise
    except BaseException:
        drop_interrupted_call()
        raise


def demand_running(spark: SparkSession) -> None:
    """Check that the caller's session has not ended.

    :raises SessionLostError: the session was stopped, or its JVM has ended.
    """
    with says_when_lost():
        stopped = getattr(spark, "is_stopped", None)  # only sessions of Spark Connect have this attribute
        if stopped if stopped is not None else _is_stopped():
            raise SessionLostError("the Spark session is stopped", next_step="create a new one")


def end_quietly(context: SparkContext) -> None:
    """Hide tracebacks from PySpark's accumulator server and from py4j if the JVM has ended.

    py4j logs a failed call to the root logger and also raises the error.
    """
    server = context._accumulatorServer
    told = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            told(request, address)

    logging.getLogger().addFilter(_is_no_failed_call)
    server.handle_error = handle_error  # type: ignore[method-assign, assignment]


def stop(session: SparkSession) -> None:
    """Stop a session, and suppress PySpark's warning that the JVM has ended, since a clearer error follows."""
    drop_interrupted_call()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Unable to cleanly shutdown Spark JVM", RuntimeWarning)
        session.stop()


def _is_no_failed_call(record: logging.LogRecord) -> bool:
    return record.msg != "Exception while sending command."


def _lost(error: Exception) -> SessionLostError | None:
    from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
    from pyspark import SparkContext

    if isinstance(error, SessionLostError):
        return None
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    is_cut_off = isinstance(error, Py4JNetworkError | ConnectionError | EOFError)
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _of_jvm(process.wait(_EXIT_SECONDS if is_cut_off else 0))
    elif gateway is not None and is_cut_off:
        return SessionLostError("Spark's JVM no longer answers", next_step=f"check whether it was killed; {_AGAIN}")
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        if SparkContext._active_spark_context is not None and _is_stopped():
            return SessionLostError(
                "Spark ended the session while it was in use",
                next_step=f"look in the master's log whether it was stopped or the application was killed; {_AGAIN}",
            )
    return None


def _of_jvm(code: int) -> SessionLostError:
    number = -code if code < 0 else code - 128
    if number > 0:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return SessionLostError(
            f"Spark's JVM was killed by {name}",
            next_step=f"check the system's log (dmesg) for a lack of memory; {_AGAIN}",
        )
    return SessionLostError(
        f"Spark's JVM has ended with exit code {code}", next_step=f"see the last lines of its output; {_AGAIN}"
    )


def _is_stopped() -> bool:
    from pyspark import SparkContext

    ensure_in_step()  # the caller may have been interrupted before
    context = SparkContext._active_spark_context
    return context is None or context._jsc is None or bool(context._jsc.sc().isStopped())
