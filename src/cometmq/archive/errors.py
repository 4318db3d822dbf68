"""Errors of archives."""

from __future__ import annotations

from cometmq.errors import CometMQError


class ArchiveError(CometMQError):
    """An archive cannot be read or continued: it is damaged, another job writes to it, or offsets have a gap or an
    overlap.
    """


class TakenOverError(ArchiveError):
    """Another job has opened the archive since, so this job cannot commit any more."""


def taken_over(archive: object, *, owner: str) -> TakenOverError:
    """Return the error of a job whose archive has another owner.

    :param archive: the archive as messages call it, such as ``the archive file:///a``.
    :param owner: the id of the job that owns the archive now; empty if an older version of CometMQ wrote last.
    """
    by = "another job" if owner else "an older version of CometMQ"
    return TakenOverError(
        f"{by} has taken over {archive}; this job cannot commit any more",
        next_step="let only one job write to an archive; messages are neither lost nor duplicated",
    )
