"""The data files of an archive, and their names.

A data file contains messages from one queue and one hour of store time. Its name contains the queue, the hour and the
first offset::

    topic=<topic>/hour=<YYYY-MM-DD-HH>/part-<broker>-<queue>-<first>-e<epoch>-<random>.parquet

``e<epoch>`` is the epoch of the writer; files of a compaction have ``u`` instead. A name is used only once, and a file
belongs to the archive only if a commit names it. Older archives also have names that end with ``-<first>-<end>``.
"""

from __future__ import annotations

import re
import uuid
from typing import Final
from urllib.parse import quote, unquote

import msgspec

from cometmq.archive.errors import ArchiveError
from cometmq.archive.limits import Count, Milliseconds, QueueId
from cometmq.message.queues import Queue

HOUR_MS: Final = 3_600_000
_PLACE: Final = re.compile(r"topic=([^/]+)/hour=([^/]+)/[^/]+")
_PART: Final = re.compile(
    r"topic=(?P<topic>[^/]+)/hour=(?P<hour>[^/]+)/part-(?P<broker>[^/]*)-(?P<queue_id>\d+)-(?P<first>\d{20})-"
    r"(?:(?P<end>\d{20})|(?:e(?P<epoch>\d+)|u)-[0-9a-f]{8})\.parquet"
)


class DataFile(msgspec.Struct, frozen=True):
    """One Parquet file: a queue's messages from offset ``first`` up to but not including ``end``, all from one hour."""

    path: str
    """Key of the file in the archive's storage."""
    topic: str
    broker: str
    queue_id: QueueId
    first: Count
    end: Count
    rows: Count
    bytes: Count
    min_store_ms: Milliseconds
    max_store_ms: Milliseconds
    bad_bodies: Count
    """Number of messages whose bodies could not be decompressed. Iceberg does not store this number."""
    committed_ms: Milliseconds = 0
    """Time in ms since 1970 when the file's last message was committed; 0 if unknown."""

    @property
    def queue(self) -> Queue:
        """Return the queue whose messages the file contains."""
        return Queue(self.topic, self.broker, self.queue_id)


def new_part_path(queue: Queue, store_ms: int, first: int, epoch: int | None) -> str:
    """Return a name for a data file that no other file has.

    :param store_ms: store time of any of the messages, ms since 1970. Years after 9999, which brokers with wrong clocks
        may write, have more than four digits.
    :param epoch: the writer's epoch, or None for a compaction.
    """
    import numpy as np

    hour = str(np.datetime64(store_ms // HOUR_MS, "h")).replace("T", "-")
    writer = "u" if epoch is None else f"e{epoch}"
    return (
        f"{topic_directory(queue.topic)}/hour={hour}/"
        f"part-{quote(queue.broker, safe='')}-{queue.queue_id}-{first:020d}-{writer}-{uuid.uuid4().hex[:8]}.parquet"
    )


def topic_directory(topic: str) -> str:
    """Return the directory of a topic's files."""
    return f"topic={quote(topic, safe='')}"


def hour_of(path: str) -> str:
    """Return the hour of store time that a data file's name contains."""
    return _parsed(path)["hour"]


def hour_ended_ms(path: str) -> int:
    """Return the time when a data file's hour ends, ms since 1970."""
    day, _, hour = hour_of(path).rpartition("-")
    import numpy as np

    return (int(np.datetime64(f"{day}T{hour}", "h").astype(np.int64)) + 1) * HOUR_MS


def place_of(path: str) -> tuple[str, str]:
    """Return the topic and the hour from a path below the data directories; both are empty for other files."""
    match = _PLACE.fullmatch(path)
    return ("", "") if match is None else (unquote(match[1]), match[2])


def epoch_of(path: str) -> int | None:
    """Return the epoch of the writer of a data file, or None if its name has none."""
    match = _PART.fullmatch(path)
    return None if match is None or match["epoch"] is None else int(match["epoch"])


def queue_of(path: str) -> Queue:
    """Return the queue that a data file's name contains.

    :raises ArchiveError: the file was not written by an archive job.
    """
    match = _parsed(path)
    return Queue(unquote(match["topic"]), unquote(match["broker"]), int(match["queue_id"]))


def first_of(path: str) -> int:
    """Return the first offset that a data file's name contains."""
    return int(_parsed(path)["first"])


def _parsed(path: str) -> re.Match[str]:
    match = _PART.fullmatch(path)
    if match is None:
        raise ArchiveError(
            f"the table names {path}, which an archive job did not write",
            next_step="only cometmq pipeline archive may write to the table; restore its previous version",
        )
    return match
