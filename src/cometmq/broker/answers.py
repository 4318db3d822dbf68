"""Answers to sends, formatted from templates that are prepared once (hot path).

Only the offset id, the queue id, the queue offset and the opaque differ from one answer to a single
stored message to the next; all else of the frame (``SendMessageResponseHeader`` with MSG_REGION and
TRACE_ON) is fixed for a broker. Batches, binary headers and errors take the ordinary way.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from cometmq.remoting.codes import CURRENT_VERSION, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE
from cometmq.remoting.headers import SendMessageResponseHeader
from cometmq.remoting.processors import SERVER_LANGUAGE, Request, Response
from cometmq.remoting.server_connection import ServerConnection

_VARIABLE_BYTES: Final = 96
"""Room for the offset, queue id, queue offset and opaque of an answer, as decimal text, signs included."""

_WORDS: Final = struct.Struct(">iI")
_BINARY_HEAD: Final = struct.Struct(">hbhiiii")


class PendingSend(msgspec.Struct, gc=False):
    """A request whose records are put into the store but not yet answered."""

    connection: ServerConnection
    request: Request[Any]
    queue_id: int
    queue_offset: int
    physical_offset: int
    wait: bool
    """Whether the answer waits for the flush."""
    size_bytes: int
    batch_offsets: tuple[int, ...] | None = None
    """Of a batch: the log offsets of all its messages."""
    recall_handle: str | None = None
    """Of a message that waits: what takes it back."""


def _json_text(text: str) -> bytes:
    return text.replace("\\", "\\\\").replace('"', '\\"').encode()


class SendAnswers:
    """Answers requests whose messages are stored, or could not be.

    :param store_host: 8 or 20 bytes, the address inside offset ids.
    """

    def __init__(self, store_host: bytes, *, region: str, trace_on: bool) -> None:
        self._id_prefix = store_host.hex().upper().encode()
        self.ext: Final = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        """The fields that every answer to a send carries, also errors."""
        extra = b'"MSG_REGION":"%s","TRACE_ON":"%s"' % (_json_text(region), self.ext["TRACE_ON"].encode())
        fixed = b'"extFields":{' + extra.replace(b"%", b"%%") + b',"msgId":"'
        tail = (
            b'","queueId":"%%d","queueOffset":"%%d"},"flag":%d,"language":"%s","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (FLAG_RESPONSE, SERVER_LANGUAGE.encode(), CURRENT_VERSION)
        self._single = b'{"code":0,' + fixed + self._id_prefix + b"%016X" + tail
        self._prefixes = [_WORDS.pack(4 + length, length) for length in range(len(self._single) + _VARIABLE_BYTES)]

    def stored(self, sends: Iterable[PendingSend]) -> None:
        """Answer stored messages with code 0."""
        single = self._single
        prefixes = self._prefixes
        for send in sends:
            connection = send.connection
            request = send.request
            if (
                connection.hooked
                or send.batch_offsets is not None
                or send.recall_handle is not None
                or request.serializeTypeCurrentRPC == "ROCKETMQ"
            ):
                connection.respond(request, self._response(send, ResponseCode.SUCCESS))
            else:
                header = single % (send.physical_offset, send.queue_id, send.queue_offset, request.opaque)
                connection.write(prefixes[len(header)] + header)

    def stored_but(self, code: int, sends: Iterable[PendingSend]) -> None:
        """Answer messages that are stored, but of which ``code`` warns (FLUSH_DISK_TIMEOUT)."""
        for send in sends:
            send.connection.respond(send.request, self._response(send, code))

    def refused(self, code: int, remark: str, sends: Iterable[PendingSend]) -> None:
        """Answer messages that are not stored."""
        response = Response(code, remark=remark, ext=self.ext)
        for send in sends:
            send.connection.respond(send.request, response)

    def msg_id(self, physical_offset: int) -> str:
        """The offset id of a message at that place of the log."""
        return (b"%s%016X" % (self._id_prefix, physical_offset)).decode()

    def original(self, queue_id: int, queue_offset: int, offsets: Iterable[int]) -> Response:
        """The answer once more for a batch whose messages are stored at these log offsets."""
        header = SendMessageResponseHeader(msg_id=self._ids(offsets), queue_id=queue_id, queue_offset=queue_offset)
        return Response(0, header, ext=self.ext)

    def _ids(self, offsets: Iterable[int]) -> str:
        return b",".join([b"%s%016X" % (self._id_prefix, offset) for offset in offsets]).decode()

    def _response(self, send: PendingSend, code: int) -> Response:
        offsets = (send.physical_offset,) if send.batch_offsets is None else send.batch_offsets
        header = SendMessageResponseHeader(
            msg_id=self._ids(offsets),
            queue_id=send.queue_id,
            queue_offset=send.queue_offset,
            recall_handle=send.recall_handle,
        )
        return Response(code, header, ext=self.ext)
