"""GET_STORE_FILE (30039): slaves copy the master's files that cannot be derived from the log (a CometMQ extension).

The files in ``comet/`` cannot be derived from the log, since old parts of it are deleted: they contain long-delayed
messages, producer sequences, the progress of delay levels and queue locks. Each file contains the log offset at which
it was valid, so that it may be copied at any time. The slave *holds* a copy until its own log has been flushed up to
that offset, and in a failover set also confirmed. Later changes are in the log, which is read starting at that offset.
Thus an old copy is as correct as a new one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from cometmq.broker.delay.delay_offsets import DelayOffsets, DelayProgress
from cometmq.broker.limits import (
    COPIED_FILE_BYTES_PER_SECOND,
    MAX_COPIED_FILE_BYTES,
    MAX_STORE_FILE_READS,
    STORE_FILE_PART_BYTES,
)
from cometmq.broker.replication.frames import ReplicationError
from cometmq.broker.send.producer_sequence_log import snapshot_offsets
from cometmq.broker.tables.rebalance_locks import HeldQueues
from cometmq.durable import replace_file
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetStoreFileRequestHeader, GetStoreFileResponseHeader
from cometmq.remoting.permissions import Action, needs_cluster
from cometmq.remoting.processors import Request, Response, answers
from cometmq.remoting.server_connection import ServerConnection
from cometmq.store.message_store import MessageStore
from cometmq.store.recovery.known_topics import DELETED_TOPICS
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

_FILES: Final = re.compile(
    r"deletedTopics\.json|delayOffset\.json|locks\.json|producers\.json|timer/position\.json|timer/\d{4}-\d\d-\d\d\.(?:index|data)",
    re.ASCII,
)
"""The files that slaves may request; no other file is ever opened."""


class StoreFileProcessor:
    """The master's side, which reads parts of the files in threads.

    :param write_deletions: writes the complete file of deleted topics if some of them are only in its journal.
    """

    def __init__(self, root: Path, write_deletions: Callable[[], Awaitable[None]]) -> None:
        self._directory = root / "comet"
        self._write_deletions = write_deletions
        self._reading = 0

    @answers(
        RequestCode.GET_STORE_FILE,
        limits=("MAX_STORE_FILE_READS", "STORE_FILE_PART_BYTES"),
        permission=needs_cluster(Action.UPDATE),
    )
    async def read(
        self, _connection: ServerConnection, request: Request[GetStoreFileRequestHeader], _body: bytes
    ) -> Response:
        """Return part of a file for a slave, or NO_MESSAGE if the file does not exist."""
        header = request.header
        if _FILES.fullmatch(header.file) is None or header.offset < 0 or header.length < 0:
            return Response(ResponseCode.INVALID_PARAMETER, remark=f"slaves may not copy the file {header.file!r}")
        if self._reading >= MAX_STORE_FILE_READS:
            remark = f"{MAX_STORE_FILE_READS} requests are already reading files for slaves, try again"
            return Response(ResponseCode.SYSTEM_BUSY, remark=remark)
        self._reading += 1
        try:
            if header.file == DELETED_TOPICS and not header.offset:
                await self._write_deletions()
            return await in_thread(self._read, header.file, header.offset, header.length)
        except FileNotFoundError:
            return Response(ResponseCode.NO_MESSAGE, remark=f"{header.file} does not exist")
        except OSError as error:
            return Response(ResponseCode.SYSTEM_ERROR, remark=f"cannot read {header.file}: {error.strerror}")
        finally:
            self._reading -= 1

    def _read(self, file: str, offset: int, length: int) -> Response:
        fd = os.open(self._directory / file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            stat = os.fstat(fd)
            body = os.pread(fd, min(length, STORE_FILE_PART_BYTES), offset)
        finally:
            os.close(fd)
        version = f"{stat.st_ino}.{stat.st_ctime_ns}"
        return Response(header=GetStoreFileResponseHeader(size=stat.st_size, version=version), body=body)


class NotOfferedError(ReplicationError):
    """Raised when the master is not a CometMQ broker, so it has no such files."""


class FilePart(msgspec.Struct, frozen=True):
    """A part of a file."""

    data: bytes
    size: int
    """Size of the file in bytes."""
    version: str


class MasterFiles:
    """The slave's side, which reads the master's files over the network.

    :param master: ``host:port`` for requests.
    """

    def __init__(self, client: RemotingClient, master: str) -> None:
        self._client: Final = client
        self._master: Final = master

    async def part(self, file: str, offset: int, length: int) -> FilePart | None:
        """Read up to ``length`` bytes of a file, starting at ``offset``; return ``None`` if the file does not exist.

        :raises NotOfferedError: the master does not know the request.
        :raises ReplicationError: the master cannot read the file.
        :raises RemotingError: the master does not answer.
        """
        header = GetStoreFileRequestHeader(file=file, offset=offset, length=min(length, STORE_FILE_PART_BYTES))
        answer = await self._client.invoke(self._master, RequestCode.GET_STORE_FILE, header)
        if answer.code in (
            ResponseCode.NO_MESSAGE,
            ResponseCode.INVALID_PARAMETER,
        ):  # an older master offers fewer files
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotOfferedError(f"master {self._master} does not offer files for copying")
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"master {self._master} did not return {file}: code {answer.code}, {answer.remark}")
        of_file = answer.header(GetStoreFileResponseHeader)
        return FilePart(answer.body, of_file.size, of_file.version)

    async def range(self, file: str, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` to ``end`` of an append-only file.

        :raises ReplicationError: the file is too short, or see :meth:`part`.
        """
        data = bytearray()
        while start + len(data) < end:
            part = await self.part(file, start + len(data), end - start - len(data))
            if part is None or not part.data:
                raise ReplicationError(f"{file} on master {self._master} ends before byte {end}")
            data += part.data
        return bytes(data)

    async def whole(self, file: str, known: str) -> FilePart | None:
        """Read a complete file; return ``None`` if it does not exist or still has the version ``known``.

        :raises ReplicationError: the file is too large, or see :meth:`part`.
        """
        first = await self.part(file, 0, STORE_FILE_PART_BYTES)
        if first is None or first.version == known:
            return None
        if first.size > MAX_COPIED_FILE_BYTES:
            raise ReplicationError(
                f"{file} on master {self._master} has {first.size} bytes; the maximum is {MAX_COPIED_FILE_BYTES}"
            )
        data = bytearray(first.data)
        while len(data) < first.size:
            part = await self.part(file, len(data), first.size - len(data))
            if part is None or part.version != first.version or not part.data:
                return None  # the file has changed: it is copied the next time
            data += part.data
        return FilePart(bytes(data), first.size, first.version)


Check = Callable[[bytes], tuple[int, int]]
"""Callback that returns the log offsets between which a file is valid, or raises ValueError for a malformed file."""
Write = Callable[[bytes], None]


class CopiedFile:
    """A file that a slave copies from its master.

    :param check: returns the file's log offsets.
    :param write: writes the file in place, in a thread.
    """

    def __init__(self, name: str, store: MessageStore, check: Check, write: Write) -> None:
        self.name: Final = name
        self._store = store
        self._check = check
        self._write = write
        self._clock = store.clock
        self._held: tuple[tuple[int, int], FilePart] | None = None
        self._version = ""
        self._not_before_s = store.clock.monotonic()

    async def copy(self, master: MasterFiles) -> None:
        """Copy the master's file, which takes effect once this broker's log has reached its offset.

        :raises ReplicationError: the master's file cannot be used or read.
        :raises RemotingError: the master does not answer.
        :raises OSError: the file cannot be written.
        """
        if self._held is None and self._clock.monotonic() >= self._not_before_s:
            found = await master.whole(self.name, self._version)
            if found is None:
                return
            try:
                offsets = await in_thread(self._check, found.data)  # a large one takes a third of a second
            except ValueError as error:
                raise ReplicationError(f"cannot use the master's {self.name}: {error}") from error
            self._not_before_s = self._clock.monotonic() + found.size / COPIED_FILE_BYTES_PER_SECOND
            self._held = (offsets, found)
        await self.put_in_place()

    def begin_with_master(self) -> None:
        """Forget a held file of an earlier master: its offset is one of the earlier master's log."""
        self._held, self._version = None, ""

    async def put_in_place(self) -> None:
        """Install the held file if this broker's log has reached its offset.

        :raises OSError: the file cannot be written.
        """
        if self._held is None:
            return
        (start, end), found = self._held
        if 0 < start < self._store.min_physical_offset:
            self._held = None  # this log begins later: a newer file is needed
        elif end <= self._store.kept_end:
            await in_thread(self._write, found.data)
            self._held = None
            self._version = found.version


def copied_files(store: MessageStore) -> list[CopiedFile]:
    """Return the files that a slave copies, except those of the timer log."""
    root = store.config.root
    delays = DelayOffsets(root)
    delays.load()
    return [
        CopiedFile(
            "delayOffset.json",
            store,
            lambda content: (_progress(content).position, _progress(content).position),
            lambda content: delays.save(_progress(content)),
        ),
        CopiedFile("producers.json", store, snapshot_offsets, _writer(root / "comet" / "producers.json")),
        CopiedFile("locks.json", store, _check_locks, _writer(root / "comet" / "locks.json")),
    ]


def _progress(content: bytes) -> DelayProgress:
    return msgspec.json.decode(content, type=DelayProgress)


def _check_locks(content: bytes) -> tuple[int, int]:
    msgspec.json.decode(content, type=list[HeldQueues])
    return 0, 0


def _writer(path: Path) -> Write:
    return lambda content: replace_file(path, content)
