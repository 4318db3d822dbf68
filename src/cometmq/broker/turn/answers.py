"""Responses to requests that store messages (``SendMessageResponseHeader``; hot path).

The response for a single stored message is formatted with a template, in which only the offset ID, the queue ID, the
queue offset and the opaque differ. Responses for batches, responses with binary headers and errors are encoded in the
usual way.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from cometmq.core import CORE
from cometmq.remoting.codes import CURRENT_VERSION, LanguageCode, RequestCode, ResponseCode
from cometmq.remoting.command import FLAG_RESPONSE, decode_command, encode_binary_field
from cometmq.remoting.frame import JSON, ROCKETMQ, FrameDecoder
from cometmq.remoting.headers import SendMessageResponseHeader
from cometmq.remoting.processors import SERVER_LANGUAGE, Request, Response, RpcRejectedError, encode_response
from cometmq.remoting.rpc_latency import RpcLatency
from cometmq.remoting.server_connection import ServerConnection

_VARIABLE_BYTES: Final = 96
"""Maximum size of the variable parts of a response: offset, queue ID, queue offset and opaque."""

FLUSH_IS_LATE: Final = Response(
    ResponseCode.FLUSH_DISK_TIMEOUT,
    remark="stored, but not flushed within syncFlushTimeout, or not replicated within slaveTimeout",
)

_WORDS: Final = struct.Struct(">iI")
_BINARY_HEAD: Final = struct.Struct(">hbh")
_SUCCESS: Final = ResponseCode.SUCCESS
_SEND: Final = RequestCode.SEND_MESSAGE_V2
"""The request code under which sends that the core handled are counted, since the core does not report codes."""
_BATCH: Final = RequestCode.SEND_BATCH_MESSAGE
_OPAQUES: Final = struct.Struct("=iB")
OFFSET_BYTES: Final = 8


def packed_offsets(offsets: Sequence[int]) -> bytes:
    """Return log offsets as big-endian int64, as in message IDs."""
    return struct.pack(f">{len(offsets)}q", *offsets)


class PendingSend(msgspec.Struct, gc=False):
    """A request whose records are in the store's batch and that has not been answered yet."""

    connection: ServerConnection
    request: Request[Any]
    queue_id: int
    queue_offset: int
    physical_offset: int
    wait: bool
    """True if the response waits for the flush."""
    size_bytes: int
    batch_offsets: bytes | None = None
    """Log offsets of all messages in a batch, encoded by :func:`packed_offsets`; they replace ``physical_offset``."""
    recall_handle: str | None = None
    """The recall handle of a delayed message."""


class PlainAnswers(msgspec.Struct, gc=False):
    """The responses to the plain sends (sends without a detour) in one batch of the compiled core."""

    connections: list[tuple[ServerConnection, bytes, bytes, int, int]]
    """For each connection: its responses with code 0, the opaques, the number of requests and the bytes of their
    bodies.
    """
    batches: int = 0
    """The number of these requests that are SEND_BATCH_MESSAGE."""
    wait: bool = True
    """True if the responses wait for the flush."""
    arrived: float = 0.0
    """Arrival time of the sends, for :class:`~cometmq.remoting.rpc_latency.RpcLatency`."""

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        total = 0
        for _, _, _, requests, _ in self.connections:
            total += requests
        return total


def _json_text(text: str) -> bytes:
    return msgspec.json.encode(text)[1:-1]


def _write(answers: list[tuple[ServerConnection, bytes, bytes, int, int]]) -> None:
    """Write the responses of many connections: the core writes what their sockets take, and the rest is queued."""
    for row, written in _write_direct(answers):
        connection, frames, _, requests, _ = answers[row]
        connection.write_last(frames[written:], requests)


def _write_nothing(answers: Sequence[Any]) -> Iterable[tuple[int, int]]:
    """Leave all responses to the connections, as the core does with those that it cannot write."""
    return ((row, 0) for row in range(len(answers)))


_write_direct: Final[Callable[[Sequence[Any]], Iterable[tuple[int, int]]]] = getattr(
    CORE, "write_answers", _write_nothing
)


class SendAnswers:
    """Answers send requests whose messages have been stored or refused.

    :param store_host: the address in offset IDs, 8 or 20 bytes.
    """

    def __init__(self, store_host: bytes, *, region: str, trace_on: bool, latency: RpcLatency | None = None) -> None:
        self.store_host: Final = store_host
        self._id_prefix = store_host.hex().upper().encode()
        self.latency: Final = latency
        """Records how long sends take, if metrics are enabled."""
        self.ext: Final = {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}
        """Fields in every response to a send, including errors."""
        extra = b'"MSG_REGION":"%s","TRACE_ON":"%s"' % (_json_text(region), self.ext["TRACE_ON"].encode())
        extra = extra.replace(b"%", b"%%")
        stored = b'"msgId":"' + self._id_prefix + b'%016X","queueId":"%d","queueOffset":"%d"'
        tail = (b'},"flag":%d,"language":"%s","opaque":%%d,"serializeTypeCurrentRPC":"JSON","version":%d}') % (
            FLAG_RESPONSE,
            SERVER_LANGUAGE.encode(),
            CURRENT_VERSION,
        )
        self._single = b'{"code":0,"extFields":{' + extra + b"," + stored + tail
        batch = b'{"code":0,"extFields":{' + stored + b"," + extra + tail
        binary = b"".join([encode_binary_field(name, value) for name, value in self.ext.items()])
        head = _BINARY_HEAD.pack(ResponseCode.SUCCESS, LanguageCode[SERVER_LANGUAGE], CURRENT_VERSION)
        self.parts: Final = (_constant_parts(self._single), _constant_parts(batch), self._id_prefix, head, binary)
        """The constant texts of response headers, which the compiled core needs: in JSON for a message and for a batch,
        and in binary form.
        """
        self._prefixes = [_WORDS.pack(4 + length, length) for length in range(len(self._single) + _VARIABLE_BYTES)]

    def stored(self, sends: Iterable[PendingSend | PlainAnswers]) -> None:
        """Answer requests whose messages have been stored, with code 0."""
        single = self._single
        prefixes = self._prefixes
        latency = self.latency
        for send in sends:
            if isinstance(send, PlainAnswers):
                if latency is not None:
                    self._count_plain(send, _SUCCESS)
                _write(send.connections)
                continue
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
                if latency is not None:
                    latency.answered(request.code, ResponseCode.SUCCESS, request.arrived)

    def answer_with_warning(self, code: int, sends: Iterable[PendingSend | PlainAnswers]) -> None:
        """Answer requests whose messages are stored, but not flushed or replicated in time.

        :param code: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE.
        """
        for send in sends:
            if isinstance(send, PlainAnswers):
                self._count_plain(send, code)
                self._answer_plain_with_warning(code, send)
                continue
            send.connection.respond(send.request, self._response(send, code))

    def refused(self, refusal: RpcRejectedError, sends: Iterable[PendingSend | PlainAnswers]) -> None:
        """Answer requests whose messages are not acknowledged."""
        response = refusal.response(self.ext)
        for send in sends:
            if isinstance(send, PlainAnswers):
                self._count_plain(send, refusal.code)
                for connection, _, opaques, *_ in send.connections:
                    requests = [
                        (opaque, ROCKETMQ if is_binary else JSON) for opaque, is_binary in _OPAQUES.iter_unpack(opaques)
                    ]
                    connection.refuse_all(requests, response)
            else:
                send.connection.respond(send.request, response)

    def _count_plain(self, sends: PlainAnswers, code: int) -> None:
        """Count the responses to sends that the compiled core handled."""
        if self.latency is None:
            return
        for request_code, requests in ((_SEND, sends.requests - sends.batches), (_BATCH, sends.batches)):
            if requests:
                self.latency.answered(request_code, code, sends.arrived, requests)

    def _answer_plain_with_warning(self, code: int, sends: PlainAnswers) -> None:
        for connection, frames, *_ in sends.connections:
            for frame in FrameDecoder().feed(frames):
                stored = decode_command(frame)
                response = Response(code, stored.header(SendMessageResponseHeader), ext=self.ext)
                connection.write(*encode_response(frame.serialize_type, stored.opaque, response))

    def msg_id(self, physical_offset: int) -> str:
        """Return the offset ID of a message at a log offset."""
        return (b"%s%016X" % (self._id_prefix, physical_offset)).decode()

    def original(self, queue_id: int, queue_offset: int, offsets: Sequence[int]) -> Response:
        """Return the response that a batch got when its messages were first stored at these log offsets."""
        ids = self._ids(packed_offsets(offsets))
        header = SendMessageResponseHeader(msg_id=ids, queue_id=queue_id, queue_offset=queue_offset)
        return Response(0, header, ext=self.ext)

    def _ids(self, offsets: bytes) -> str:
        prefix = self._id_prefix.decode()
        return prefix + offsets.hex(",", OFFSET_BYTES).upper().replace(",", f",{prefix}")

    def _response(self, send: PendingSend, code: int) -> Response:
        offsets = packed_offsets([send.physical_offset]) if send.batch_offsets is None else send.batch_offsets
        header = SendMessageResponseHeader(
            msg_id=self._ids(offsets),
            queue_id=send.queue_id,
            queue_offset=send.queue_offset,
            recall_handle=send.recall_handle,
        )
        return Response(code, header, ext=self.ext)


def _constant_parts(template: bytes) -> list[bytes]:
    """Return the constant texts between the numbers in a response template."""
    return [part.replace(b"%%", b"%") for part in re.split(rb"(?<!%)%(?:016X|d)", template)]


class OneAnswer:
    """Answers a request for which the broker itself stores messages; only the first response is sent.

    With SYNC_FLUSH the response is sent after the flush, as for a send, or after ``syncFlushTimeout``: see ``late`` in
    :meth:`~cometmq.broker.turn.store_turn.StoreTurn.put_inner`.
    """

    def __init__(self, connection: ServerConnection, request: Request[Any]) -> None:
        self._connection = connection
        self._request = request
        self._is_answered = False

    def respond(self, response: Response) -> None:
        """Answer the request, unless it has already been answered."""
        if not self._is_answered:
            self._is_answered = True
            self._connection.respond(self._request, response)

    def respond_flush_timeout(self) -> None:
        """Answer that the flush has timed out."""
        self.respond(FLUSH_IS_LATE)
