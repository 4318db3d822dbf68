"""Processors: which request is decoded into which header, and who answers it.

A :class:`ProcessorTable` maps a request code to its header type and handler. Brokers, nameservers and
clients (for what brokers push) use the same table. A header is decoded once, from its bytes into the
typed struct; only clients that write odd JSON or binary headers take the way over text fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

import msgspec

from cometmq.limits import MAX_REMARK_CHARS
from cometmq.remoting.codes import CURRENT_VERSION, RequestCode, ResponseCode
from cometmq.remoting.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    decode_header,
    encode_binary_header,
    encode_json_header,
    fields_of,
)
from cometmq.remoting.frame import JSON, ROCKETMQ, FrameError, encode_frame
from cometmq.remoting.headers import H, Header, HeaderError, Int32, from_ext

Buffer = bytes | memoryview

_LIGHT: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)

SERVER_LANGUAGE: Final = "JAVA"
"""What answers call themselves: every client knows it, whatever else it knows."""


class Request(msgspec.Struct, Generic[H], rename={"header": "extFields"}):
    """A request as a handler sees it; its body is handed over beside it.

    The remark of a request means nothing and is not kept: requests may wait long for their answer. Numbers are Java's
    ``int``, also so that an answer, which repeats the opaque, can always be written.
    """

    code: Int32
    header: H
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    serializeTypeCurrentRPC: str | None = None  # noqa: N815 - the wire's name; decides nothing, see serialize_type

    @property
    def oneway(self) -> bool:
        """Whether the sender said that nobody waits for an answer."""
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def serialize_type(self) -> int:
        """The form of the header, which the answer takes too."""
        return ROCKETMQ if self.serializeTypeCurrentRPC == "ROCKETMQ" else JSON


class Response(msgspec.Struct):
    """An answer: code, typed header or further fields (``ext``), remark, and a body in one or many pieces."""

    code: int = 0
    header: Header | None = None
    remark: str | None = None
    body: Buffer | Sequence[Buffer] = b""
    ext: Mapping[str, str] | None = None


class RpcRejectedError(Exception):
    """Raised by a hook's ``before`` to refuse a request with a code and words."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


@dataclass(frozen=True)
class RpcHook:
    """Two functions, either may be missing, that see a server's requests and answers (``RPCHook``)."""

    before: Callable[[str, Request[Any], bytes], None] | None = None
    """Called with the peer, a request and its body before its handler; refuses by :class:`RpcRejectedError`."""
    after: Callable[[str, Request[Any], Response], None] | None = None
    """Called with the peer, a request and its answer, also one that a oneway request does not get."""


Handler = Callable[[Any, Request[Any], bytes], Response | None]


class Processor:
    """One entry of the table."""

    __slots__ = ("_decoder", "code", "handler", "header_type", "is_light")

    def __init__(self, code: int, header_type: type[Header], handler: Handler) -> None:
        self.code = code
        self.is_light = code in _LIGHT
        """Whether requests of this code never take long: after others the clock is looked at."""
        self.header_type = header_type
        self.handler = handler
        self._decoder: msgspec.json.Decoder[Request[Any]] = msgspec.json.Decoder(
            Request[header_type],  # type: ignore[valid-type]
            strict=False,
        )

    def decode(self, serialize_type: int, header: bytes) -> Request[Any]:
        """The request in these header bytes.

        :raises HeaderError: a field is missing or not of its type.
        :raises FrameError: the bytes are no header at all, or name another code besides: hooks that decide by the
            code would see that one.
        """
        if serialize_type == JSON:
            try:
                request = self._decoder.decode(header)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            else:
                if request.code == self.code:
                    return request
        parsed = decode_header(serialize_type, header)
        if parsed.code != self.code:
            raise FrameError(f"a header with two codes, {self.code} and {parsed.code}")
        try:
            fields = from_ext(self.header_type, parsed.ext_fields or {})
        except HeaderError as error:
            raise RequestError(parsed.opaque, parsed.flag, serialize_type, error.message) from error
        return Request(
            code=parsed.code,
            header=fields,
            opaque=parsed.opaque,
            flag=parsed.flag,
            language=parsed.language,
            version=parsed.version,
            serializeTypeCurrentRPC="ROCKETMQ" if serialize_type == ROCKETMQ else None,
        )


class RequestError(HeaderError):
    """A request that can be answered, but whose typed header could not be read."""

    def __init__(self, opaque: int, flag: int, serialize_type: int, message: str) -> None:
        super().__init__(message)
        self.opaque = opaque
        self.flag = flag
        self.serialize_type = serialize_type


class ProcessorTable:
    """Request code → :class:`Processor`."""

    def __init__(self) -> None:
        self._by_code: dict[int, Processor] = {}
        self._by_prefix: dict[bytes, Processor] = {}

    def register(
        self, code: int, header_type: type[H], handler: Callable[[Any, Request[H], bytes], Response | None]
    ) -> None:
        """Let ``handler(connection, request, body)`` answer ``code``.

        It returns the answer, or ``None`` when it will call ``connection.respond`` later (or never,
        for a oneway request).
        """
        processor = Processor(int(code), header_type, handler)
        self._by_code[processor.code] = processor
        self._by_prefix[b'{"code":%d' % processor.code] = processor

    def codes(self) -> Iterable[int]:
        """The codes that are answered."""
        return self._by_code.keys()

    def find(self, serialize_type: int, header: bytes) -> Processor | None:
        """The processor for a request's header bytes; ``None`` also where only a full decode can tell."""
        if serialize_type == JSON:
            return self._by_prefix.get(header[: header.find(b",", 8, 24)])
        return self._by_code.get(int.from_bytes(header[:2], "big", signed=True))

    def without(self, *codes: int) -> ProcessorTable:
        """A table of the same processors, those of some codes left out."""
        table = ProcessorTable()
        for code in self._by_code.keys() - {int(code) for code in codes}:
            processor = self._by_code[code]
            table.register(code, processor.header_type, processor.handler)
        return table

    def get(self, code: int) -> Processor | None:
        """The processor of a code."""
        return self._by_code.get(code)


def not_supported(code: int) -> Response:
    """The answer to a code that nobody registered, in RocketMQ's words."""
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")


def encode_response(
    serialize_type: int, opaque: int, response: Response, *, language: str = SERVER_LANGUAGE
) -> list[Buffer]:
    """The frame of an answer in pieces: head, then the pieces of the body as they are."""
    fields = fields_of(response.header, response.ext)
    remark = response.remark
    if remark is not None and len(remark) > MAX_REMARK_CHARS:
        remark = remark[:MAX_REMARK_CHARS]
    body = response.body
    pieces: Sequence[Buffer] = (body,) if isinstance(body, (bytes, memoryview)) else body
    body_length = sum(map(len, pieces))
    if serialize_type == ROCKETMQ:
        head = encode_binary_header(
            RemotingCommand(
                code=response.code,
                opaque=opaque,
                flag=FLAG_RESPONSE,
                language=language,
                version=CURRENT_VERSION,
                remark=remark,
                ext_fields=fields,
            )
        )
    else:
        head = encode_json_header(
            response.code, opaque, FLAG_RESPONSE, remark, fields or None, language, CURRENT_VERSION
        )
    out: list[Buffer] = [encode_frame(serialize_type, head, body_length)]
    out.extend(piece for piece in pieces if len(piece))
    return out


def describe(code: int) -> str:
    """``NAME (code)`` for messages to people."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
