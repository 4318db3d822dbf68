"""Retention: deletes old log files, and refuses messages on a full disk (``CleanCommitLogService``).

Expired files are deleted at the hours in ``deleteWhen``, or at any hour if disk usage exceeds
``diskMaxUsedSpaceRatio``. Above ``diskSpaceCleanForciblyRatio``, the oldest files are deleted before they expire. Three
kinds of files are never deleted: the last file, files with unflushed bytes, and files that a :class:`LogHolder` needs.
Above ``diskSpaceWarningLevelRatio``, messages are refused.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from cometmq.store.errors import StoreFullError
from cometmq.store.log.flush import FlushService
from cometmq.store.log.mapped_file import MappedFile
from cometmq.store.queue.consume_queue import BLANK_SIZE, ConsumeQueue
from cometmq.store.recovery.opening import OpenedStore

_log = logging.getLogger(__name__)
_HOUR_MS = 3_600_000
_QUEUES_PER_TURN: Final = 64
"""Maximum number of queues whose old files are deleted in one round of the event loop, which takes about 3 ms."""
_SECONDS_PER_TURN: Final = 0.005
"""Time after which a round looks at no further queue; files that are not in the page cache take longer."""


class LogHolder(Protocol):
    """A component that needs messages in expired log files."""

    name: str
    """Description of the holder, for log messages."""

    def needed_from(self) -> int:
        """Return the log offset of the first byte that the holder needs."""

    def let_go(self, end: int, /) -> None:
        """Ask the holder to stop needing the log file that ends at log offset ``end`` as soon as possible."""


class LogPin:
    """A :class:`LogHolder` that keeps the log from a given offset onwards. Its owner sets the offset."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.offset: int = sys.maxsize

    def needed_from(self) -> int:
        """Return the offset."""
        return self.offset

    def let_go(self, end: int, /) -> None:
        """Do nothing, since the owner moves the offset as soon as it can anyway."""


class Retention:
    """Deletes expired files and checks the disk space."""

    def __init__(self, opened: OpenedStore, flush: FlushService, write_units: Callable[[int], bool]) -> None:
        """Create the retention of a store.

        :param write_units: writes the units of all records below a log offset into the queue files; returns false on
            failure. A queue needs its last unit to know which of its messages were in a deleted file.
        """
        self._opened = opened
        self._flush = flush
        self._write_units = write_units
        self.config = opened.config
        """Current configuration. Its run-time keys may have changed since the store was opened."""
        self.holders: list[LogHolder] = []
        self._kept = -1
        """Log offset of the end of the last file that was logged as kept for a holder."""
        self._next_step: asyncio.Handle | None = None
        self._following: list[ConsumeQueue] = []
        """Queues whose files of deleted messages must still be removed."""
        self.refusal: StoreFullError | None = None
        """Reason for refusing messages if the disk is too full, otherwise ``None``."""

    def run(self) -> None:
        """Refuse or accept messages, and delete expired files."""
        ratio = self.check_disk()
        opened = self._opened
        config, log = self.config, opened.log
        hour = datetime.datetime.fromtimestamp(opened.clock.now_ms() / 1000).astimezone().hour
        if hour not in config.delete_hours and ratio * 100 <= config.disk_max_used_space_ratio:
            return
        force = config.clean_file_forcibly_enable and ratio * 100 > config.disk_space_clean_forcibly_ratio
        self.delete_files(force=force)
        if log.segments:
            self.check_disk()

    def check_disk(self) -> float:
        """Refuse or accept messages depending on the used share of the fullest disk, and return that share.

        The log may be on another disk than the queues, the index and the timer.
        """
        config = self.config
        ratio, path = max((self._opened.disk.used_ratio(path), path) for path in (config.root, config.commit_log))
        if ratio * 100 > config.disk_space_warning_level_ratio:
            if self.refusal is None:
                _log.error("the disk of %s is %.1f %% full; messages are refused", path, ratio * 100)
            self.refusal = StoreFullError(
                f"the disk of {path} is {ratio:.0%} full, messages are refused above "
                f"{config.disk_space_warning_level_ratio} %",
                next_step="free some space; sending then works again",
            )
        elif self.refusal is not None:
            _log.warning("the disks of the store have space again; messages are accepted")
            self.refusal = None
        return ratio

    def delete_files(self, *, force: bool = False) -> int:
        """Delete the expired log files and, if ``force`` is true, also newer files. Return the number of
        deleted files.
        """
        opened = self._opened
        config, log = self.config, opened.log
        oldest_ms = opened.clock.now_ms() - config.file_reserved_time * _HOUR_MS
        removed = 0
        while len(log.segments) > 1 and removed < config.delete_file_batch_max:
            segment = log.segments[0]
            if segment.end > self._flush.position:
                break
            if not force and segment.path.stat().st_mtime * 1000 > oldest_ms:
                break
            if self._is_held(segment) or not self._write_units(segment.end):
                break
            opened.known_files.pause()
            log.remove_first()
            removed += 1
        if removed:
            _log.info("%d log files deleted; the log begins at %d", removed, log.min_offset)
            self._follow()
        return removed

    def _is_held(self, segment: MappedFile) -> bool:
        """Return whether a holder needs the file. All holders that need it are asked to release it."""
        holders = [holder for holder in self.holders if holder.needed_from() < segment.end]
        for holder in holders:
            if self._kept != segment.end:
                _log.info("log file %s is kept because it is needed by %s", segment.path.name, holder.name)
            holder.let_go(segment.end)
        if holders:
            self._kept = segment.end
        return bool(holders)

    def _follow(self) -> None:
        """Delete the files of queues and index whose messages are no longer in the log.

        A queue is looked at only if its first record may have been in a deleted file, since that opens its file.

        If the event loop is running, only some queues are processed in each round; otherwise, all are processed
        immediately.
        """
        opened = self._opened
        if opened.index is not None:
            opened.index.remove_files_below(opened.log.min_offset)
        self.stop()
        log_min = opened.log.min_offset
        self._following = [
            queue
            for queues in opened.queues.by_topic.values()
            for queue in queues.values()
            if queue.records_from < log_min
        ]
        self._follow_some()

    def _follow_some(self) -> None:
        opened, following = self._opened, self._following
        log_min = opened.log.min_offset
        self._next_step = None
        while following:
            end = opened.clock.monotonic() + _SECONDS_PER_TURN
            for _ in range(min(_QUEUES_PER_TURN, len(following))):
                queue = following.pop()
                opened.queues.remove_files_below(queue, log_min)
                _begin_at_log(queue, log_min, opened.log.position)
                if opened.clock.monotonic() > end:
                    break
            if not following:
                break
            with suppress(RuntimeError):  # without a loop, as in a tool, nothing else is waiting
                self._next_step = asyncio.get_running_loop().call_soon(self._follow_some)
                return
        opened.known_files.resume()

    def stop(self) -> None:
        """Stop deleting queue files."""
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
        self._following = []


def _begin_at_log(queue: ConsumeQueue, log_min: int, log_end: int) -> None:
    """Let a queue begin with its first record at or after ``log_min``, and remember where that is in the log.

    :param log_end: the end of the log; if the queue has no record, its next one will follow.
    """
    queue.min_logical = queue.offset_of_log(log_min)
    if queue.min_logical >= queue.committed:
        queue.records_from = log_end
        return
    unit = queue.unit(queue.min_logical)
    is_plausible = unit is not None and 0 < unit[1] < BLANK_SIZE and log_min <= unit[0] < log_end
    queue.records_from = unit[0] if unit is not None and is_plausible else 0
