"""The flag bits of messages, pulls and topics (``MessageSysFlag``, ``PullSysFlag``, ``TopicSysFlag``)."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORNHOST_V6: Final = 0x10
STOREHOST_V6: Final = 0x20
COMPRESSION_TYPE_MASK: Final = 0x700
COMPRESSION_TYPE_SHIFT: Final = 8

PULL_COMMIT: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_LITE: Final = 0x10
PULL_EXPIRED: Final = 0x10000
"""CometMQ's own flag: the pull also gets messages whose life times have ended. Other brokers ignore it."""

TOPIC_UNIT: Final = 0x1
TOPIC_UNIT_SUB: Final = 0x2


class CompressionType(IntEnum):
    """The compression type of a body. Type 0, which clients before 4.9.4 send, means zlib."""

    ZLIB_OLD = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def with_transaction(sys_flag: int, kind: int) -> int:
    """Return a sysFlag with its transaction bits set to ``kind``, one of the ``TRANSACTION_`` values."""
    return sys_flag & ~TRANSACTION_MASK | kind


def compression_type(sys_flag: int) -> int:
    """Return the compression type in a sysFlag, as a number."""
    return (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT


def with_compression(sys_flag: int, kind: CompressionType) -> int:
    """Return a sysFlag with the bits for a body compressed with ``kind``."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | COMPRESSED | (kind << COMPRESSION_TYPE_SHIFT)
