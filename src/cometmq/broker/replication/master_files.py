"""What a slave reads of its master's files (:mod:`cometmq.broker.replication.store_files`), over the network."""

from __future__ import annotations

from typing import Final

import msgspec

from cometmq.broker.replication.frames import ReplicationError
from cometmq.limits import MAX_COPIED_FILE_BYTES, STORE_FILE_PART_BYTES
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetStoreFileRequestHeader, GetStoreFileResponseHeader


class NotOfferedError(ReplicationError):
    """The master is not one of CometMQ, so that it has no such files."""


class FilePart(msgspec.Struct, frozen=True):
    """Some bytes of a file."""

    data: bytes
    size: int
    """Bytes of the whole file."""
    version: str


class MasterFiles:
    """The files of one master.

    :param master: ``host:port`` for requests.
    """

    def __init__(self, client: RemotingClient, master: str) -> None:
        self._client: Final = client
        self._master: Final = master

    async def part(self, file: str, offset: int, length: int) -> FilePart | None:
        """Up to ``length`` bytes from ``offset`` on, no more than one answer has; ``None`` for no such file.

        :raises NotOfferedError: the master does not know the request.
        :raises ReplicationError: it cannot read the file.
        :raises RemotingError: it does not answer.
        """
        header = GetStoreFileRequestHeader(file=file, offset=offset, length=min(length, STORE_FILE_PART_BYTES))
        answer = await self._client.invoke(self._master, RequestCode.GET_STORE_FILE, header)
        if answer.code == ResponseCode.NO_MESSAGE:
            return None
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotOfferedError(f"master {self._master} has no files beside its log")
        if answer.code != ResponseCode.SUCCESS:
            raise ReplicationError(f"master {self._master} does not give {file}: code {answer.code}, {answer.remark}")
        told = answer.header(GetStoreFileResponseHeader)
        return FilePart(answer.body, told.size, told.version)

    async def stretch(self, file: str, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end`` of a file that is only appended to.

        :raises ReplicationError: it has not so many; else as :meth:`part`.
        """
        data = bytearray()
        while start + len(data) < end:
            part = await self.part(file, start + len(data), end - start - len(data))
            if part is None or not part.data:
                raise ReplicationError(f"{file} of master {self._master} ends before byte {end}")
            data += part.data
        return bytes(data)

    async def whole(self, file: str, known: str) -> FilePart | None:
        """A file that is replaced as a whole; ``None`` when there is none, or still that of the version ``known``.

        :raises ReplicationError: it is larger than any that may be; else as :meth:`part`.
        """
        first = await self.part(file, 0, STORE_FILE_PART_BYTES)
        if first is None or first.version == known:
            return None
        if first.size > MAX_COPIED_FILE_BYTES:
            raise ReplicationError(
                f"{file} of master {self._master} has {first.size} bytes, limit {MAX_COPIED_FILE_BYTES}"
            )
        data = bytearray(first.data)
        while len(data) < first.size:
            part = await self.part(file, len(data), first.size - len(data))
            if part is None or part.version != first.version or not part.data:
                return None  # another stands there now: it is copied the next time
            data += part.data
        return FilePart(bytes(data), first.size, first.version)
