"""Bits of the flags that travel with messages and pulls (``MessageSysFlag``, ``PullSysFlag``, ``TopicSysFlag``)."""

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
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_TYPE_MASK: Final = 0x700
COMPRESSION_TYPE_SHIFT: Final = 8

PULL_COMMIT: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10

TOPIC_UNIT: Final = 0x1
TOPIC_UNIT_SUB: Final = 0x2


class CompressionType(IntEnum):
    """How a compressed body is packed; 0 is what clients before 4.9.4 write and means zlib."""

    ZLIB_OLD = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def with_transaction(sys_flag: int, kind: int) -> int:
    """The sysFlag of a message whose part in a transaction is ``kind``, one of the ``TRANSACTION_`` values."""
    return sys_flag & ~TRANSACTION_MASK | kind


def compression_type(sys_flag: int) -> int:
    """The number of the compression type in a message's sysFlag (see :class:`CompressionType`)."""
    return (sys_flag & COMPRESSION_TYPE_MASK) >> COMPRESSION_TYPE_SHIFT


def with_compression(sys_flag: int, kind: CompressionType) -> int:
    """The sysFlag of a message whose body is packed in ``kind``."""
    return (sys_flag & ~COMPRESSION_TYPE_MASK) | COMPRESSED | (kind << COMPRESSION_TYPE_SHIFT)
