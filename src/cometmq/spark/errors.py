"""Errors of source, sink and jobs."""

from __future__ import annotations

from cometmq.errors import CometMQError


class SparkSourceError(CometMQError):
    """The root of these errors."""


class OptionError(SparkSourceError):
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
