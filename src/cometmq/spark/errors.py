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
    """Let an error of ours that leaves the block, in a Python worker of Spark, be reported without its traceback.

    Spark's exception has what the worker writes: by default the traceback, some twenty lines, and our sentence at its
    end. PySpark's ``handle_worker_exception`` leaves the traceback out where the environment says so. The worker ends
    right after that, so the setting changes nothing else. Errors that are not ours keep their tracebacks, and so do
    errors in any other process.
    """
    try:
        yield
    except CometMQError:
        if _ends_worker():
            os.environ[_HIDES_TRACEBACK] = "1"
        raise


def _ends_worker() -> bool:
    """Tell whether a function on the stack writes exceptions for Spark's JVM, and then ends the process."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _FORMATS in frame.f_globals and frame.f_globals.get("__name__") != "pyspark.util":
            return True
        frame = frame.f_back
    return False


class SparkSourceError(CometMQError):
    """The root of these errors."""


class OptionError(options.OptionError, SparkSourceError):
    """An option, a column or an argument is unknown or has a value that is not allowed."""


class DataLossError(SparkSourceError):
    """Messages that should be read are no longer there, and ``failOnDataLoss`` is true."""


class UnreachableError(SparkSourceError):
    """Nameserver or broker could not be reached, or gave no answer, within the time allowed."""


class BadBodyError(SparkSourceError):
    """A body cannot be unpacked as its flag says, and ``badBodies`` is ``fail``."""


class ArchiveError(SparkSourceError):
    """An archive cannot be continued: another job has it, or offsets do not follow each other."""


class StoreReadError(SparkSourceError):
    """The files of a store cannot be read, or hold damaged records and ``badRecordsPath`` is not given."""


class NoStoreError(StoreReadError, OptionError):
    """The directory contains no log."""


class MaskError(SparkSourceError):
    """A copy cannot be masked: keys are missing, or a message cannot be masked and must not be left out."""


class SinkError(SparkSourceError):
    """A row cannot be sent, or a broker refuses or does not acknowledge messages."""
