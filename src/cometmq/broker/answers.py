"""Answers to sends, formatted from templates that are prepared once (hot path).

Only the offset id, the queue id, the queue offset and the opaque differ from answer to answer; all
else of the frame (``SendMessageResponseHeader`` with MSG_REGION and TRACE_ON) is fixed for a broker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from cometmq.remoting.codes import CURRENT_VERSION, LanguageCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE
from cometmq.remoting.frame import JSON, ROCKETMQ
from cometmq.remoting.processors import SERVER_LANGUAGE, Request, Response
from cometmq.remoting.server import ServerConnection

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


def _json_text(text: str) -> bytes:
    return text.replace("\\", "\\\\").replace('"', '\\"').encode()


class SendAnswers:
    """Answers requests whose messages are stored, or could not be.

    :param store_host: 8 or 20 bytes, the address inside offset ids.
    """

    def __init__(self, store_host: bytes, *, region: str, trace_on: bool) -> None:
        self._id_prefix = store_host.hex().upper().encode()
        self._region = region.encode()
        self._trace_on = b"true" if trace_on else b"false"
        self.ext: Final = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        """The fields that every answer to a send carries, also errors."""
        extra = b'"MSG_REGION":"%s","TRACE_ON":"%s"' % (_json_text(region), self._trace_on)
        fixed = b'"extFields":{' + extra.replace(b"%", b"%%") + b',"msgId":"'
        tail = (
            b'","queueId":"%%d","queueOffset":"%%d"},"flag":%d,"language":"%s","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (FLAG_RESPONSE, SERVER_LANGUAGE.encode(), CURRENT_VERSION)
        self._any = b'{"code":%d,' + fixed + b"%s" + tail
        self._single = b'{"code":0,' + fixed + self._id_prefix + b"%016X" + tail
        self._prefixes = [_WORDS.pack(4 + length, length) for length in range(len(self._single) + _VARIABLE_BYTES)]

    def stored(self, sends: Iterable[PendingSend]) -> None:
        """Answer stored messages with code 0."""
        single = self._single
        prefixes = self._prefixes
        for send in sends:
            request = send.request
            if send.batch_offsets is None and request.serializeTypeCurrentRPC != "ROCKETMQ":
                header = single % (send.physical_offset, send.queue_id, send.queue_offset, request.opaque)
                send.connection.write(prefixes[len(header)] + header)
            else:
                send.connection.write(self._frame(send, ResponseCode.SUCCESS))

    def stored_but(self, code: int, sends: Iterable[PendingSend]) -> None:
        """Answer messages that are stored, but of which ``code`` warns (FLUSH_DISK_TIMEOUT)."""
        for send in sends:
            send.connection.write(self._frame(send, code))

    def refused(self, code: int, remark: str, sends: Iterable[PendingSend]) -> None:
        """Answer messages that are not stored."""
        response = Response(code, remark=remark, ext=self.ext)
        for send in sends:
            send.connection.respond(send.request, response)

    def _frame(self, send: PendingSend, code: int) -> bytes:
        offsets: Sequence[int] = (send.physical_offset,) if send.batch_offsets is None else send.batch_offsets
        ids = b",".join([b"%s%016X" % (self._id_prefix, offset) for offset in offsets])
        opaque = send.request.opaque
        if send.request.serialize_type == ROCKETMQ:
            header = self._binary_header(opaque, code, ids, send.queue_id, send.queue_offset)
            return _WORDS.pack(4 + len(header), ROCKETMQ << 24 | len(header)) + header
        header = self._any % (code, ids, send.queue_id, send.queue_offset, opaque)
        return _WORDS.pack(4 + len(header), JSON << 24 | len(header)) + header

    def _binary_header(self, opaque: int, code: int, ids: bytes, queue_id: int, queue_offset: int) -> bytes:
        fields = b"".join(
            len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value
            for name, value in (
                (b"msgId", ids),
                (b"queueId", b"%d" % queue_id),
                (b"queueOffset", b"%d" % queue_offset),
                (b"TRACE_ON", self._trace_on),
                (b"MSG_REGION", self._region),
            )
        )
        language = int(LanguageCode[SERVER_LANGUAGE])
        head = _BINARY_HEAD.pack(code, language, CURRENT_VERSION, opaque, FLAG_RESPONSE, 0, len(fields))
        return head + fields
