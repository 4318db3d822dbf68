"""Refuses to open a store whose log is missing, before anything is changed.

Queues are derived from the log, so starting with an empty log would clear all queues. If the log is empty but the
queues contain messages, ``storePathCommitLog`` is wrong, a disk is not mounted, or the log is lost. The operator must
decide.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np

from cometmq.message.record import MIN_RECORD_BYTES
from cometmq.store.config import StoreConfig
from cometmq.store.disk import open_file
from cometmq.store.errors import StoreError
from cometmq.store.log.mapped_file import first_data
from cometmq.store.queue.consume_queue import BLANK_SIZE, UNIT_DTYPE
from cometmq.store.recovery.file_sizes import numbered_files, queue_directories_of

MULTI_PATH_SPLITTER: Final = ","
"""``MessageStoreConfig.MULTI_PATH_SPLITTER``: Apache 4.9 keeps one log in several directories."""


class LostLogError(StoreError):
    """The queues have messages, but the log has none."""


def require_one_path(config: StoreConfig) -> None:
    """Raise an error if the configuration spreads the log over several directories.

    :raises StoreError: ``storePathCommitLog`` lists several directories.
    """
    if MULTI_PATH_SPLITTER in config.store_path_commit_log:
        raise StoreError(
            f"storePathCommitLog={config.store_path_commit_log} names several directories, but CometMQ keeps its log "
            "in a single directory; nothing was changed",
            next_step="stop the broker, move the log files of all these directories into one (their names do not "
            "clash), and set storePathCommitLog to that one",
        )


def require_log(config: StoreConfig) -> None:
    """Refuse an empty log if queues have messages.

    :raises LostLogError: the log has no record, but units of queues point to records.
    """
    if _has_log(config):
        return
    found = [(topic, queue_id) for topic, queue_id, end in _count_messages(config) if end]
    if not found:
        return
    raise LostLogError(
        f"the log in {config.commit_log} is missing or empty, but {len(found)} queues in {config.root} contain "
        "messages, "
        f"for example queue {found[0][1]} of {found[0][0]}; nothing was changed",
        next_step="mount its disk, set its directory (storePathCommitLog), or restore a backup; if the messages are "
        "permanently lost, start once with --begin-anew to continue without them",
    )


def _has_log(config: StoreConfig) -> bool:
    for file in numbered_files(config.commit_log):
        with open_file(file.path, os.O_RDONLY) as fd:
            if first_data(fd, 0, file.size) < file.size:
                return True
    return False


def _count_messages(config: StoreConfig) -> list[tuple[str, int, int]]:
    """Return each queue's topic, id, and number of units that point to records."""
    found = []
    for topic, queue_id, directory in queue_directories_of(config.root):
        count = 0
        for file in numbered_files(directory):
            with file.path.open("rb") as opened:
                units = np.frombuffer(opened.read(file.size - file.size % UNIT_DTYPE.itemsize), UNIT_DTYPE)
            count += int(np.count_nonzero((units["size"] >= MIN_RECORD_BYTES) & (units["size"] != BLANK_SIZE)))
        found.append((topic, queue_id, count))
    return found
