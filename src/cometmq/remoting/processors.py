"""Processors: the header type and the handler for each request code.

A :class:`ProcessorTable` maps a request code to its header type and handler. Brokers, nameservers and clients (for
requests from brokers) all use such a table. A header is decoded only once, from its bytes into the typed struct; only
unusual JSON and binary headers are first decoded into text fields.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec

from cometmq.limits import MAX_REMARK_CHARS
from cometmq.loop import TaskSet
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
from cometmq.remoting.headers import H, Header, HeaderError, Int32, NoHeader, from_ext
from cometmq.remoting.permissions import Permission

_log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])

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
"""The language in responses, chosen because every client knows it."""


_BARE_HEADER: Final = (
    f'{{"code":%d,"flag":{FLAG_RESPONSE},"language":"{SERVER_LANGUAGE}","opaque":%d,'
    f'"serializeTypeCurrentRPC":"JSON","version":{CURRENT_VERSION}}}'
).encode()
"""The JSON header of a response without fields and remark, as to most heartbeats and commits of offsets."""


class Request(msgspec.Struct, Generic[H], rename={"header": "extFields"}):
    """A request as passed to handlers, without its body.

    The remark of a request has no meaning. It is dropped to save memory, since a request may wait long for its answer.
    Numbers are Java's ``int``, so that an answer can always repeat the opaque.
    """

    code: Int32
    header: H
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    serializeTypeCurrentRPC: str | None = None  # noqa: N815 - the wire's name; decides nothing, see serialize_type
    arrived: float = 0.0
    """Start of the round in which the request arrived, for :class:`~cometmq.remoting.rpc_latency.RpcLatency`."""

    @property
    def oneway(self) -> bool:
        """True if the sender does not wait for a response."""
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def serialize_type(self) -> int:
        """The serialize type of the request's header and of the response."""
        return ROCKETMQ if self.serializeTypeCurrentRPC == "ROCKETMQ" else JSON


class _BareRequest(Request[NoHeader], rename={"header": "extFields"}):
    """A request without fields: Java's clients send no ``extFields``."""

    header: NoHeader = msgspec.field(default_factory=NoHeader)


class Response(msgspec.Struct):
    """A response: a code, a typed header or other fields (``ext``), a remark, and a body in one or more pieces."""

    code: int = 0
    header: Header | None = None
    remark: str | None = None
    body: Buffer | Sequence[Buffer] = b""
    ext: Mapping[str, str] | None = None


class RpcRejectedError(Exception):
    """Raised by handlers and by hooks' ``before`` to reject a request with an error code and a message."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark

    def response(self, ext: Mapping[str, str] | None = None) -> Response:
        """Return the response to send."""
        return Response(self.code, remark=self.remark, ext=ext)


class PostponeError(Exception):
    """Raised by a handler that cannot handle a request yet: it has changed nothing, and must be called again later.

    :param when: a function that is given another function, which calls the handler again; it must call that function
        later.
    """

    def __init__(self, when: Callable[[Callable[[], None]], None]) -> None:
        super().__init__()
        self.when = when


@dataclass(frozen=True)
class RpcHook:
    """Two optional functions that are called with a server's requests and responses (``RPCHook``)."""

    before: Callable[[str, Request[Any], bytes], None] | None = None
    """Called with the peer, a request and its body before the handler; can raise :class:`RpcRejectedError` to reject
    it.
    """
    after: Callable[[str, Request[Any], Response], None] | None = None
    """Called with the peer, a request and its response, even for a oneway request, whose response is not sent."""


Handler = Callable[[Any, Request[Any], bytes], Response | None]
"""A function that handles a request and its body.

It raises :class:`RpcRejectedError` to reject the request, or :class:`PostponeError` to be called again later. It
returns the response, or ``None`` if it calls ``connection.respond`` later, or never for a oneway request.
"""
AsyncHandler = Callable[[Any, Request[Any], bytes], Awaitable[Response]]
"""A handler for rare requests: an ``async def`` that runs in a task and returns the response."""


@dataclass(frozen=True)
class Answered:
    """A mark on a method that handles a request code."""

    code: RequestCode
    header: type[Header]
    limits: tuple[str, ...]
    """The names of the limits for the request in the ``limits`` modules."""
    permission: Permission | None
    """The permission required if permissions are checked; if it is missing, the request is denied."""


def answers(
    *codes: RequestCode,
    header: type[Header] | None = None,
    limits: Sequence[str] = (),
    permission: Permission | None = None,
) -> Callable[[F], F]:
    """Mark a method as the handler for these codes; :meth:`ProcessorTable.add` registers it.

    ``docs/protocol.md`` is generated from these marks.

    :param header: needed only if the codes of a method have different headers; by default, the header in ``request:
        Request[…]``.
    :param limits: names in the ``limits`` modules of the limits for such a request.
    :param permission: the permission that a request needs if permissions are checked; if it is omitted, every request
        is then denied.
    """

    def mark(handler: F) -> F:
        kind = _header_of(handler) if header is None else header
        found = [Answered(code, kind, tuple(limits), permission) for code in codes]
        handler.__answers__ = [*found, *answered(handler)]  # type: ignore[attr-defined]
        return handler

    return mark


def _header_of(handler: Callable[..., Any]) -> type[Header]:
    """Return the header class in a handler's ``Request[…]`` annotation, or ``NoHeader`` for ``Request[Any]``."""
    for annotation in inspect.get_annotations(handler, eval_str=True).values():
        for kind in get_args(annotation):
            if isinstance(kind, type) and issubclass(kind, Header):
                return kind
    return NoHeader


def answered(handler: Callable[..., Any]) -> Sequence[Answered]:
    """Return a handler's marks in the order in which they were added."""
    found: Sequence[Answered] = getattr(handler, "__answers__", ())
    return found


def handlers(kind: type) -> Sequence[tuple[str, Answered]]:
    """Yield the name of each marked method in a class, once per code."""
    return _handlers(kind)


@cache
def _handlers(kind: type) -> Sequence[tuple[str, Answered]]:
    members = inspect.getmembers_static(kind, inspect.isfunction)
    return [(name, mark) for name, member in members for mark in answered(member)]


class Processor:
    """An entry in the processor table."""

    __slots__ = ("_decoder", "code", "handler", "header_type", "is_light", "permission")

    def __init__(
        self, code: int, header_type: type[Header], handler: Handler, permission: Permission | None = None
    ) -> None:
        self.code = code
        self.permission = permission
        self.is_light = code in _LIGHT
        """True if requests with this code never take long. The clock is read only after other requests."""
        self.header_type = header_type
        self.handler = handler
        kind: Any = _BareRequest if header_type is NoHeader else Request[header_type]  # type: ignore[valid-type]
        self._decoder: msgspec.json.Decoder[Request[Any]] = msgspec.json.Decoder(kind, strict=False)

    def decode(self, serialize_type: int, header: bytes) -> Request[Any]:
        """Decode a request's header.

        :raises HeaderError: a field is missing or has the wrong type.
        :raises FrameError: the bytes are not a header, or contain a second code, which hooks would see instead.
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
            raise FrameError(f"the header has two codes, {self.code} and {parsed.code}")
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
    """A request that can be answered although its typed header could not be read."""

    def __init__(self, opaque: int, flag: int, serialize_type: int, message: str) -> None:
        super().__init__(message)
        self.opaque = opaque
        self.flag = flag
        self.serialize_type = serialize_type


class ProcessorTable:
    """The processors by request code."""

    def __init__(self) -> None:
        self._by_code: dict[int, Processor] = {}
        self._by_prefix: dict[bytes, Processor] = {}
        self._running = TaskSet()
        """Tasks of ``async`` handlers."""

    def add(self, part: object, *, replaces: bool = False) -> None:
        """Register an object's methods that are marked with :func:`answers`.

        :param replaces: if true, they may replace other handlers.
        :raises ValueError: a code already has a handler, and ``replaces`` is false.
        """
        for name, mark in handlers(type(part)):
            if mark.code in self._by_code and not replaces:
                raise ValueError(
                    f"there are two handlers for {mark.code.name}: {self._by_code[mark.code].handler}, {part}.{name}"
                )
            self.register(mark.code, mark.header, getattr(part, name), mark.permission)

    def register(
        self,
        code: int,
        header_type: type[H],
        handler: Callable[[Any, Request[H], bytes], Response | Awaitable[Response] | None],
        permission: Permission | None = None,
    ) -> None:
        """Register ``handler(connection, request, body)`` for ``code``; see :data:`Handler` and
        :data:`AsyncHandler`.
        """
        answer: Any = self._in_task(handler) if inspect.iscoroutinefunction(handler) else handler
        processor = Processor(int(code), header_type, answer, permission)
        self._by_code[processor.code] = processor
        self._by_prefix[b'{"code":%d' % processor.code] = processor

    def gate(self, codes: Iterable[int], refuse: Callable[[], Response | None]) -> None:
        """Ask ``refuse`` before each request with one of these codes; its response, if any, is the answer."""

        def gated(handler: Handler) -> Handler:
            return lambda *request: refuse() or handler(*request)

        for code in codes:
            processor = self._by_code[int(code)]
            self.register(code, processor.header_type, gated(processor.handler), processor.permission)

    def _in_task(self, handler: AsyncHandler) -> Handler:
        def begin(connection: Any, request: Request[Any], body: bytes) -> None:
            self._running.start(_answer(handler, connection, request, body), describe(request.code))

        return begin

    def codes(self) -> Iterable[int]:
        """Return the codes that have a processor."""
        return self._by_code.keys()

    def find(self, serialize_type: int, header: bytes) -> Processor | None:
        """Return the processor for a request's header bytes, or ``None`` if there is none, or if the header must be
        decoded completely to find it.
        """
        if serialize_type == JSON:
            return self._by_prefix.get(header[: header.find(b",", 8, 24)])
        return self._by_code.get(int.from_bytes(header[:2], "big", signed=True))

    def without(self, *codes: int) -> ProcessorTable:
        """Return a copy of the table with the processors for some codes removed."""
        table = ProcessorTable()
        for code in self._by_code.keys() - {int(code) for code in codes}:
            processor = self._by_code[code]
            table.register(code, processor.header_type, processor.handler, processor.permission)
        return table

    def get(self, code: int) -> Processor | None:
        """Return the processor for a code."""
        return self._by_code.get(code)


async def _answer(handler: AsyncHandler, connection: Any, request: Request[Any], body: bytes) -> None:
    try:
        response = await handler(connection, request, body)
    except RpcRejectedError as rejected:
        response = rejected.response()
    except Exception as error:
        response = failed(connection.remote_address, request, error)
    connection.respond(request, response)


def failed(peer: str, request: Request[Any], error: Exception) -> Response:
    """Log an error raised by a handler, and return the response."""
    _log.error("request %d from %s failed", request.code, peer, exc_info=error)
    return Response(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def not_supported(code: int) -> Response:
    """Return the response to an unknown code, in RocketMQ's words."""
    return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {code} not supported")


def encode_response(
    serialize_type: int, opaque: int, response: Response, *, language: str = SERVER_LANGUAGE
) -> list[Buffer]:
    """Encode a response as pieces: the header, followed by the unchanged pieces of the body."""
    fields = fields_of(response.header, response.ext)
    remark = response.remark
    if remark is not None and len(remark) > MAX_REMARK_CHARS:
        remark = remark[:MAX_REMARK_CHARS]
    body = response.body
    pieces: Sequence[Buffer] = ((body,) if body else ()) if isinstance(body, (bytes, memoryview)) else body
    body_length = sum(map(len, pieces)) if pieces else 0
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
    elif not fields and remark is None and language == SERVER_LANGUAGE:
        head = _BARE_HEADER % (response.code, opaque)
    else:
        head = encode_json_header(
            response.code, opaque, FLAG_RESPONSE, remark, fields or None, language, CURRENT_VERSION
        )
    out: list[Buffer] = [encode_frame(serialize_type, head, body_length)]
    if body_length:
        out += [piece for piece in pieces if len(piece)]
    return out


def describe(code: int) -> str:
    """Return ``NAME (code)``, for use in messages."""
    try:
        return f"{RequestCode(code).name} ({code})"
    except ValueError:
        return f"code {code}"
