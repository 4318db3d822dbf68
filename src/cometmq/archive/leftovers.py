"""Data files that no commit names: what killed and repeated tasks left behind."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.archive.files import epoch_of
from cometmq.archive.locks import local_directory
from cometmq.clock import Clock
from cometmq.storage import Storage, StoredObject

SPARED_MS: Final = 24 * 3_600_000
"""Minimum age at which a file without a commit cannot belong to a batch that a running job is about to commit."""
_DATA: Final = re.compile(r"topic=[^/]+/hour=[^/]+/[^/]+|(?:_writing|_joining)/[^/]+\.parquet")
"""Data files. Older versions wrote below ``_writing`` and ``_joining``, and moved files into place."""


def leftovers(
    storage: Storage, named: Callable[[], tuple[Iterable[str], int]], now_ms: int, *, alone: bool = False
) -> list[StoredObject]:
    """Return the files below an archive that belong to no commit and to no running job.

    :param named: function that returns the files that must stay, and the epoch of the archive's last writer. It is
        called after the files are listed: a file that a writer of an earlier epoch wrote and that has no commit by then
        will never have one.
    :param now_ms: the time on the storage's clock, in ms since 1970.
    :param alone: True if no job is archiving, so that young files are left over too.
    """
    listed = [found for found in storage.list_objects() if _DATA.fullmatch(found.key)]
    unfinished = list(storage.list_unfinished())
    needed, last_epoch = named()
    stay = set(needed)

    def is_left(found: StoredObject) -> bool:
        epoch = epoch_of(found.key)
        return alone or found.modified_ms < now_ms - SPARED_MS or (epoch is not None and epoch < last_epoch)

    return [found for found in (*listed, *unfinished) if found.key not in stay and is_left(found)]


def now_of(storage: Storage, clock: Clock) -> int:
    """Return the time on the clock that gives the objects of a storage their times, in ms since 1970."""
    if local_directory(storage) is not None:
        return clock.now_ms()
    key = f"_probe/{uuid.uuid4().hex}"
    storage.put(key, b"now")
    found = storage.stat(key)
    storage.delete([key])
    return clock.now_ms() if found is None else found.modified_ms
