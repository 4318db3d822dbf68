"""Errors of source, sink and jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from cometmq import options
from cometmq.errors import CometMQError

_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
_FORMATS: Final = "handle_worker_exception"


@contextmanager
def sentence_first() -> Iterator[None]:
    """Report an error of this package that leaves the block in a Python worker of Spark without its traceback.

    Spark's exception contains what the worker writes: by default a traceback of some twenty lines with the message at
    its end. PySpark's ``handle_worker_exception`` leaves out the traceback if an environment variable is set. The
    worker ends right after that, so the setting changes nothing else. Other errors keep their tracebacks, and so do
    errors in any other process.
    """
    try:
        yield
    except CometMQError:
        if _ends_worker():
            os.environ[_HIDES_TRACEBACK] = "1"
        raise


def _ends_worker() -> bool:
    """Return True if a function on the stack writes exceptions for Spark's JVM and then ends the process."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _FORMATS in frame.f_globals and frame.f_globals.get("__name__") != "pyspark.util":
            return True
        frame = frame.f_back
    return False


class SparkSourceError(CometMQError):
    """The base of the errors of source, sink and jobs."""


class OptionError(options.OptionError, SparkSourceError):
    """An option, a column or an argument is unknown or has a value that is not allowed."""


class DataLossError(SparkSourceError):
    """Messages to read no longer exist, and ``failOnDataLoss`` is true."""


class UnreachableError(SparkSourceError):
    """A nameserver or broker could not be reached, or did not answer, within the time limit."""


class BadBodyError(SparkSourceError):
    """A body cannot be decompressed as its flag says, and ``badBodies`` is ``fail``."""


class ArchiveError(SparkSourceError):
    """An archive cannot be continued: another job holds it, or offsets do not follow each other."""


class StoreReadError(SparkSourceError):
    """The files of a store cannot be read, or contain damaged records while ``badRecordsPath`` is not set."""


class NoStoreError(StoreReadError, OptionError):
    """The directory contains no log."""


class MaskError(SparkSourceError):
    """A copy cannot be masked: keys are missing, or a message that must not be left out cannot be masked."""


class SinkError(SparkSourceError):
    """A row cannot be sent, or a broker rejects or does not acknowledge messages."""
