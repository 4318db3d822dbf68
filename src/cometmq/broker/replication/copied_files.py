"""Files beside the log that a slave copies whole, so that it can go on where the master was.

A file that says at which log offset it was true is *held* until the log here is on the disk up to there: what came
later stands in the log, and whoever reads the file reads the log from that offset on. So an old copy is as good as a
new one; a new one saves reading.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.locks import HeldQueues
from cometmq.broker.producer_sequence_log import reach_of
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.replication.master_files import FilePart, MasterFiles
from cometmq.clock import Clock
from cometmq.durable import replace_file
from cometmq.limits import COPIED_FILE_BYTES_PER_SECOND
from cometmq.store.message_store import MessageStore

_log = logging.getLogger(__name__)

Check = Callable[[bytes], tuple[int, int]]
"""The log offsets between which a file's content is true; a ValueError when it is not such a file."""
Write = Callable[[bytes], None]


class CopiedFile:
    """One file.

    :param check: tells its log offsets.
    :param write: puts it in its place, in a thread.
    """

    def __init__(self, name: str, store: MessageStore, check: Check, write: Write, *, clock: Clock) -> None:
        self.name: Final = name
        self._store = store
        self._check = check
        self._write = write
        self._clock = clock
        self._held: tuple[tuple[int, int], FilePart] | None = None
        self._version = ""
        self._not_before_s = clock.monotonic()

    async def copy(self, master: MasterFiles) -> None:
        """Take the master's file over, as soon as the log here is up to it.

        :raises ReplicationError: the master's file is not what it should be, or cannot be had.
        :raises RemotingError: the master does not answer.
        :raises OSError: it cannot be written here.
        """
        if self._held is None and self._clock.monotonic() >= self._not_before_s:
            found = await master.whole(self.name, self._version)
            if found is None:
                return
            try:
                reach = await asyncio.to_thread(self._check, found.data)  # a large one takes a third of a second
            except ValueError as error:
                raise ReplicationError(f"the master's {self.name} cannot be used: {error}") from error
            self._not_before_s = self._clock.monotonic() + found.size / COPIED_FILE_BYTES_PER_SECOND
            self._held = (reach, found)
        await self.put_in_place()

    async def put_in_place(self) -> None:
        """Put what is held in its place, if the log here is up to it.

        :raises OSError: it cannot be written.
        """
        if self._held is None:
            return
        (start, end), found = self._held
        if 0 < start < self._store.min_physical_offset:
            self._held = None  # the log here begins later: only a newer one is of use
        elif end <= self._store.flushed_position:
            await asyncio.to_thread(self._write, found.data)
            self._held = None
            self._version = found.version


def copied_files(store: MessageStore, *, clock: Clock) -> list[CopiedFile]:
    """All that a slave copies but waiting messages."""
    root = store.config.root
    delays = DelayOffsets(root)
    delays.load()
    return [
        CopiedFile(
            "delayOffset.json",
            store,
            lambda content: (_progress(content).position, _progress(content).position),
            lambda content: delays.save(_progress(content)),
            clock=clock,
        ),
        CopiedFile("producers.json", store, reach_of, _writer(root / "comet" / "producers.json"), clock=clock),
        CopiedFile("locks.json", store, _always, _writer(root / "comet" / "locks.json"), clock=clock),
    ]


def _progress(content: bytes) -> DelayProgress:
    return msgspec.json.decode(content, type=DelayProgress)


def _always(content: bytes) -> tuple[int, int]:
    msgspec.json.decode(content, type=list[HeldQueues])
    return 0, 0


def _writer(path: Path) -> Write:
    return lambda content: replace_file(path, content)
