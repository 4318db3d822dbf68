"""Sessions that end while they are used: one sentence with the next step, instead of what py4j or Spark say.

A JVM that is killed leaves py4j with a connection that is refused or closed, at any call, also at the ones that stop
the session. A master that dies, or a person who kills the application there, stops the session in a JVM that runs on.
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

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_EXIT_SECONDS: Final = 2.0
"""Time for a JVM whose connections are closed to become a process that has ended."""
_AGAIN: Final = "the same command continues where a job that writes was, and repeats one that only reads"


class SessionLostError(SparkSourceError):
    """The Spark session ended while it was used, or had ended before."""


@contextlib.contextmanager
def says_when_lost() -> Iterator[None]:
    """Raise one sentence for whatever fails within the block because the session has ended.

    :raises SessionLostError: the JVM is gone, or has stopped the session.
    """
    try:
        yield
    except Exception as error:
        if (lost := _lost(error)) is not None:
            raise lost from error
        raise


def demand_running(spark: SparkSession) -> None:
    """Demand that a session that was given has not ended.

    :raises SessionLostError: it was stopped, or its JVM is gone.
    """
    with says_when_lost():
        stopped = getattr(spark, "is_stopped", None)  # of Spark Connect
        if stopped if stopped is not None else _is_stopped():
            raise SessionLostError("the Spark session that was given is stopped", next_step="make a new one")


def end_quietly(context: SparkContext) -> None:
    """Show no tracebacks of PySpark's server of accumulators and of py4j when the JVM is gone.

    py4j logs a call that fails at the root logger, and raises the same error to its caller.
    """
    server = context._accumulatorServer
    told = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            told(request, address)

    logging.getLogger().addFilter(_is_no_failed_call)
    server.handle_error = handle_error  # type: ignore[method-assign, assignment]


def stop(session: SparkSession) -> None:
    """Stop a session. PySpark's warning of a JVM that is gone is left out: what follows it fails and says more."""
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
        return SessionLostError("Spark's JVM does not answer any more", next_step=f"was it killed? {_AGAIN}")
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        if SparkContext._active_spark_context is not None and _is_stopped():
            return SessionLostError(
                "Spark has ended the session while it was used",
                next_step=f"was the master stopped, or the application killed there? its log says why; {_AGAIN}",
            )
    return None


def _of_jvm(code: int) -> SessionLostError:
    number = -code if code < 0 else code - 128
    if number > 0:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return SessionLostError(
            f"Spark's JVM was killed by {name}",
            next_step=f"was memory short? the system's log (dmesg) says so; {_AGAIN}",
        )
    return SessionLostError(
        f"Spark's JVM has ended with exit code {code}", next_step=f"its last lines say why; {_AGAIN}"
    )


def _is_stopped() -> bool:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context is None or context._jsc is None or bool(context._jsc.sc().isStopped())
