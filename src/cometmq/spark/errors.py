"""Errors raised by the source, the sink and the jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from cometmq import options
from cometmq.archive.errors import ArchiveError as ArchiveError
from cometmq.errors import CometMQError

_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
_FORMATS: Final = "handle_worker_exception"


@contextmanager
def sentence_first() -> Iterator[None]:
    """In a Spark Python worker, report this package's errors that leave the block without a traceback.

    Spark's exception contains the worker's output: by default a traceback of about twenty lines with the message at the
    end. PySpark's ``handle_worker_exception`` leaves out the traceback if an environment variable is set. The worker
    ends right after that, so the setting changes nothing else. Other errors, and errors in other processes, keep their
    tracebacks.
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
    """Base class of the errors raised by the source, the sink and the jobs."""


class OptionError(options.OptionError, SparkSourceError):
    """An option, a column or an argument is unknown or has a value that is not allowed."""


class DataLossError(SparkSourceError):
    """Some of the messages to read no longer exist, and ``failOnDataLoss`` is true."""


class UnreachableError(SparkSourceError):
    """A nameserver or broker could not be reached or did not answer before the timeout."""


class BadBodyError(SparkSourceError):
    """A body cannot be decompressed as its flag indicates, and ``badBodies`` is ``fail``."""


class StoreReadError(SparkSourceError):
    """A store's files cannot be read, or contain damaged records and ``badRecordsPath`` is not set."""


class NoStoreError(StoreReadError, OptionError):
    """The directory contains no commit log."""


class MaskError(SparkSourceError):
    """A copy cannot be masked: keys are missing, or a message that must not be left out cannot be masked."""


class SinkError(SparkSourceError):
    """A row cannot be sent, or a broker rejects messages or does not acknowledge them."""
