"""Compression of message bodies (``common/compression`` in RocketMQ 4.9.4 and later).

zlib means an RFC 1950 stream, LZ4 means the LZ4 *frame* format, and ZSTD means a zstd frame. The decompressed size is
limited, no matter what the headers claim.
"""

from __future__ import annotations

import importlib
import zlib
from functools import cache
from typing import Any, Final

from cometmq.errors import CometMQError, missing_package
from cometmq.limits import MAX_DECOMPRESSED_BYTES
from cometmq.message.sysflag import COMPRESSED, CompressionType, compression_type, with_compression

DEFAULT_LEVEL: Final = 5
"""The compression level used by RocketMQ's producers."""


_ZSTD_WINDOW_BYTES: Final = 1 << 27
"""Maximum window size of a zstd frame (the format allows 2 GiB)."""


class DecompressionError(CometMQError):
    """A body is not in the format that its flag specifies, or its decompressed size exceeds the limit."""


def compress(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = DEFAULT_LEVEL) -> bytes:
    """Compress ``body``; ``level`` is a level of the compression library.

    :raises MissingPackageError: the library is not installed.
    """
    if kind is CompressionType.LZ4:
        return bytes(_library("lz4.frame").compress(body, compression_level=level))
    if kind is CompressionType.ZSTD:
        return bytes(_library("zstandard").ZstdCompressor(level=level).compress(body))
    return zlib.compress(body, level)


def pack(body: bytes, kind: CompressionType = CompressionType.ZLIB, level: int = DEFAULT_LEVEL) -> tuple[bytes, int]:
    """Compress a body if this makes it smaller; return the resulting body and its sysFlag."""
    compressed = compress(body, kind, level)
    return (compressed, with_compression(0, kind)) if len(compressed) < len(body) else (body, 0)


def decompress(body: bytes, sys_flag: int, max_bytes: int = MAX_DECOMPRESSED_BYTES) -> bytes:
    """Decompress ``body`` according to its ``sys_flag``; return an uncompressed body unchanged.

    :raises DecompressionError: the data is damaged or truncated, the type is unknown, or the result exceeds
        ``max_bytes``.
    :raises MissingPackageError: the library for the compression type is not installed.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = compression_type(sys_flag)
    if kind in (CompressionType.ZLIB, CompressionType.ZLIB_OLD):
        return _inflate(body, max_bytes)
    if kind == CompressionType.LZ4:
        return _unlz4(body, max_bytes)
    if kind == CompressionType.ZSTD:
        return _unzstd(body, max_bytes)
    raise DecompressionError(f"unknown compression type {kind} in sysFlag {sys_flag:#x}")


@cache
def _library(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        package = module.partition(".")[0]
        raise missing_package("this compression type", package, f"pip install {package}") from None


def _inflate(body: bytes, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, max_bytes)
    except zlib.error as error:
        raise DecompressionError(f"the body is not valid zlib data: {error}") from error
    _demand(inflater.eof, len(plain) >= max_bytes, "zlib", max_bytes)
    return plain


def _unlz4(body: bytes, max_bytes: int) -> bytes:
    unpacker = _library("lz4.frame").LZ4FrameDecompressor()
    try:
        plain = bytes(unpacker.decompress(body, max_bytes))
    except RuntimeError as error:
        raise DecompressionError(f"the body is not a valid LZ4 frame: {error}") from error
    _demand(unpacker.eof, len(plain) >= max_bytes, "LZ4", max_bytes)
    return plain


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    zstandard = _library("zstandard")
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    try:
        claimed = zstandard.frame_content_size(body)
        if claimed > max_bytes:
            _demand(False, True, "zstd", max_bytes)
        if claimed >= 0:
            return bytes(unpacker.decompress(body))
        # The frame has no size: count the output first, then decompress in one piece.
        with unpacker.stream_reader(body) as stream:
            room = max_bytes
            while room > 0 and (piece := stream.read(min(room, 1 << 20))):
                room -= len(piece)
        _demand(room > 0, room <= 0, "zstd", max_bytes)
        whole = unpacker.decompressobj()
        plain = bytes(whole.decompress(body))
    except zstandard.ZstdError as error:
        raise DecompressionError(f"the body is not a valid zstd frame: {error}") from error
    _demand(whole.eof, False, "zstd", max_bytes)
    return plain


def _demand(whole: bool, full: bool, name: str, max_bytes: int) -> None:
    if whole:
        return
    if full:
        raise DecompressionError(f"the {name} body is larger than {max_bytes} bytes when decompressed")
    raise DecompressionError(f"the {name} body is truncated")
