"""Frames of gRPC's clients, made by hand."""

from __future__ import annotations

from tests.proxy.client import SERVICE

from cometmq.proxy.http2 import frames
from cometmq.proxy.http2.frames import frame
from cometmq.proxy.http2.hpack import encode_headers

HELLO = frames.PREFACE + frames.settings({})
GRPC = (("content-type", "application/grpc"), ("te", "trailers"))
_INDEXED = 0x40


def headers(stream: int, method: str, *more: tuple[str, str], client: str = "attacker", flags: int = 0) -> bytes:
    """The beginning of a call."""
    own = (("x-mq-client-id", client),) if client else ()
    block = encode_headers((":method", "POST"), (":path", SERVICE + method), *GRPC, *own, *more)
    return frame(frames.HEADERS, frames.END_HEADERS | flags, stream, block)


def javas_headers(stream: int, method: str, client: str) -> bytes:
    """The beginning of a call as Java's client makes it; the server's table keeps what is new in a call."""
    usual = (
        *GRPC,
        (":method", "POST"),
        ("user-agent", "grpc-java-netty/1.50.0"),
        ("x-mq-language", "JAVA"),
        ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.2.0"),
        ("x-mq-client-id", client),
        ("grpc-accept-encoding", "gzip"),
    )
    own = (
        (":path", SERVICE + method),
        ("x-mq-date-time", f"20260131T{stream:06d}Z"),
        ("x-mq-request-id", f"{client[-24:]:0>24}-{stream:08d}"),
    )
    first = stream == 1
    block = b"".join(_indexed(header) for header in (*own, *(usual if first else ())))
    return frame(frames.HEADERS, frames.END_HEADERS, stream, block + (b"" if first else encode_headers(*usual)))


def _indexed(header: tuple[str, str]) -> bytes:
    return bytes([_INDEXED]) + encode_headers(header)[1:]


def data(stream: int, payload: bytes, *, ends: bool = True) -> bytes:
    """A message, or a part of it, in frames."""
    parts = [payload[at : at + 16_384] for at in range(0, len(payload), 16_384)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(frames.DATA, frames.END_STREAM if ends and at == last else 0, stream, part)
        for at, part in enumerate(parts)
    )


def prefixed(payload: bytes) -> bytes:
    """A message of gRPC."""
    return b"\0" + len(payload).to_bytes(4, "big") + payload
