"""Timestamps and durations of protobuf, and RocketMQ's milliseconds."""

from __future__ import annotations

from cometmq.proxy.protocol import v2

_NANOS_OF_A_MILLISECOND = 1_000_000
_MS_OF_A_SECOND = 1_000
_FIRST_MS = -62_135_596_800_000
_LAST_MS = 253_402_300_799_999
"""Those of the years 1 to 9999: of other timestamps protobuf's libraries make an error."""


def ms_of(moment: v2.Timestamp | v2.Duration) -> int:
    """Milliseconds of a timestamp, since 1970, or of a duration."""
    return moment.seconds * _MS_OF_A_SECOND + moment.nanos // _NANOS_OF_A_MILLISECOND


def timestamp(ms: int) -> v2.Timestamp:
    """The timestamp of milliseconds since 1970; the nearest one that protobuf has."""
    seconds, rest = divmod(min(max(ms, _FIRST_MS), _LAST_MS), _MS_OF_A_SECOND)
    return v2.Timestamp(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)


def duration(ms: int) -> v2.Duration:
    """The duration of milliseconds."""
    seconds, rest = divmod(ms, _MS_OF_A_SECOND)
    return v2.Duration(seconds=seconds, nanos=rest * _NANOS_OF_A_MILLISECOND)
