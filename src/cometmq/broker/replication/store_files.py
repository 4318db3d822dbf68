"""GET_STORE_FILE (30039): slaves of CometMQ copy what this broker keeps beside its log (an extension of CometMQ's).

That is what stands below ``comet/`` and cannot be derived from what the log still has: messages that wait for longer
than the log is kept, the table of producers' sequences, how far delayed messages are delivered, who holds which queue.
Each of these files says at which log offset it was true, so that it may be copied at any time.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any, Final

from cometmq.limits import MAX_STORE_FILE_READS, STORE_FILE_PART_BYTES
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetStoreFileRequestHeader, GetStoreFileResponseHeader
from cometmq.remoting.processors import ProcessorTable, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_FILES: Final = re.compile(
    r"delayOffset\.json|locks\.json|producers\.json|timer/position\.json|timer/\d{4}-\d\d-\d\d\.(?:index|data)",
    re.ASCII,
)
"""The only names that are ever opened."""


class StoreFileProcessor:
    """Reads parts of these files, in threads."""

    def __init__(self, root: Path) -> None:
        self._directory = root / "comet"
        self._reading: set[asyncio.Task[None]] = set()

    def register(self, processors: ProcessorTable) -> None:
        """Answer the code."""
        processors.register(RequestCode.GET_STORE_FILE, GetStoreFileRequestHeader, self.read)

    def read(self, connection: ServerConnection, request: Request[Any], _body: bytes) -> Response | None:
        """Some bytes of a file; NO_MESSAGE while there is no such file."""
        header: GetStoreFileRequestHeader = request.header
        if _FILES.fullmatch(header.file) is None or header.offset < 0 or header.length < 0:
            return Response(ResponseCode.INVALID_PARAMETER, remark=f"{header.file!r} is no file that slaves copy")
        if len(self._reading) >= MAX_STORE_FILE_READS:
            remark = f"{MAX_STORE_FILE_READS} requests read files for slaves already, try again"
            return Response(ResponseCode.SYSTEM_BUSY, remark=remark)
        task = asyncio.get_running_loop().create_task(self._answer(connection, request), name="read for a slave")
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        return None

    async def _answer(self, connection: ServerConnection, request: Request[Any]) -> None:
        header: GetStoreFileRequestHeader = request.header
        try:
            response = await asyncio.to_thread(self._read, header.file, header.offset, header.length)
        except FileNotFoundError:
            response = Response(ResponseCode.NO_MESSAGE, remark=f"there is no {header.file}")
        except OSError as error:
            response = Response(ResponseCode.SYSTEM_ERROR, remark=f"{header.file} cannot be read: {error.strerror}")
        connection.respond(request, response)

    def _read(self, file: str, offset: int, length: int) -> Response:
        fd = os.open(self._directory / file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            stat = os.fstat(fd)
            body = os.pread(fd, min(length, STORE_FILE_PART_BYTES), offset)
        finally:
            os.close(fd)
        version = f"{stat.st_ino}.{stat.st_ctime_ns}"
        return Response(header=GetStoreFileResponseHeader(size=stat.st_size, version=version), body=body)
