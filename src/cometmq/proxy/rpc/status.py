"""gRPC status codes and trailers."""

from __future__ import annotations

import enum
from typing import Final
from urllib.parse import quote

from cometmq.proxy.http2.hpack import encode_headers

_MAX_REASON_CHARS: Final = 2_048
"""Maximum length of a status message in trailers; clients reject long header lists."""
_PRINTABLE: Final = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


class GrpcStatus(enum.IntEnum):
    """The gRPC status codes (``io.grpc.Status.Code``)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class GrpcError(Exception):
    """A call ends with a status other than OK."""

    def __init__(self, status: GrpcStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


HEADERS: Final = b"\x88" + encode_headers(("content-type", "application/grpc"))
"""The headers of every response: ``:status 200`` and the content type."""
OK_TRAILERS: Final = encode_headers(("grpc-status", "0"))


def trailers(status: GrpcStatus, reason: str) -> bytes:
    """Encode the trailers of a response."""
    if status is GrpcStatus.OK:
        return OK_TRAILERS
    text = quote(reason[:_MAX_REASON_CHARS], safe=_PRINTABLE)
    return encode_headers(("grpc-status", str(int(status))), ("grpc-message", text))


def plain_answer(http_status: int) -> bytes:
    """Encode the response headers for a request that is not a gRPC request."""
    return encode_headers((":status", str(http_status)))
