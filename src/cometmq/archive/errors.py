"""Errors of archives."""

from __future__ import annotations

from cometmq.errors import CometMQError


class ArchiveError(CometMQError):
    """An archive cannot be read or continued: it is damaged, another job writes to it, or offsets have a gap or an
    overlap.
    """


class TakenOverError(ArchiveError):
    """Another job has opened the archive since, so this job cannot commit any more."""
