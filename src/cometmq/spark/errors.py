"""What can go wrong in the Spark room."""

from __future__ import annotations

from cometmq.errors import CometMQError


class SparkSourceError(CometMQError):
    """The root of the errors of source, sink and jobs."""


class OptionError(SparkSourceError):
    """An option, a column or an argument is unknown or has a value that is not allowed."""


class DataLossError(SparkSourceError):
    """Messages that should be read are no longer there, and ``failOnDataLoss`` is true."""


class UnreachableError(SparkSourceError):
    """Nameserver or broker could not be reached, or gave no answer, within the time allowed."""


class BadBodyError(SparkSourceError):
    """A body cannot be unpacked as its flag says, and ``badBodies`` is ``fail``."""


class ArchiveError(SparkSourceError):
    """An archive cannot be continued: another job holds it, or offsets do not follow each other."""


class StoreReadError(SparkSourceError):
    """The files of a store cannot be read, or hold damaged records and ``badRecordsPath`` is not given."""


class NoStoreError(StoreReadError, OptionError):
    """There is no log in the directory that was named."""


class MaskError(SparkSourceError):
    """A copy cannot be masked: its keys are not there, or a message cannot be masked and must not be passed over."""


class SinkError(SparkSourceError):
    """A row cannot be sent, or a broker refuses or does not acknowledge messages."""
