"""The version of a store. CometMQ checks it before changing anything, and refuses a store that it cannot read.

``comet/store.json`` has two numbers: the version that last wrote the store, and the lowest version that can read it. A
new version raises the second number only if earlier versions would lose or misread something. Apache's brokers ignore
the file: log, queues, index and tables have Apache's formats in every version. ``check`` is the CRC-32 of the numbers:
a damaged mark is ignored, so that a flipped bit does not lock a broker out of its messages. The file also contains the
sizes of the store's files (:mod:`cometmq.store.recovery.file_sizes`).
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Final

import msgspec

from cometmq import __version__
from cometmq.durable import replace_file
from cometmq.errors import reason_of
from cometmq.store.config import FileSizes
from cometmq.store.errors import StoreError

STORE_VERSION: Final = 1
"""The store version that this version of CometMQ writes."""
READABLE_BY: Final = 1
"""The lowest store version that can read what this version of CometMQ writes."""
_MAX_BYTES: Final = 64 << 10


class NewerStoreError(StoreError):
    """The store contains something that this version of CometMQ cannot read."""


class StoreMark(msgspec.Struct, frozen=True):
    """The version mark of a store. A version may add fields, which earlier versions ignore."""

    version: int = STORE_VERSION
    readable_by: int = READABLE_BY
    cometmq: str = __version__
    sizes: FileSizes | None = None
    """The sizes of the store's files at the last start."""

    @property
    def check(self) -> int:
        """The CRC-32 of ``version readable_by cometmq``."""
        return zlib.crc32(f"{self.version} {self.readable_by} {self.cometmq}".encode())


class _Written(StoreMark, frozen=True):
    """A version mark in the format of the mark file."""

    check: int = -1


def version_file(root: Path) -> Path:
    """Return the path of a store's mark file."""
    return root / "comet" / "store.json"


def require_readable(root: Path) -> StoreMark | None:
    """Return the version mark of a store, or ``None`` if the store is new, was written by Apache's broker, or has a
    damaged mark.

    :raises NewerStoreError: this version cannot read the store.
    :raises StoreError: the mark cannot be read.
    """
    path = version_file(root)
    try:
        with path.open("rb") as file:
            written = msgspec.json.decode(file.read(_MAX_BYTES), type=_Written)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {reason_of(error)}", next_step="check its permissions") from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    mark = StoreMark(written.version, written.readable_by, written.cometmq, written.sizes)
    if written.check != mark.check:
        return None
    if mark.readable_by > STORE_VERSION:
        raise NewerStoreError(
            f"the store in {root} was written by CometMQ {mark.cometmq[:50]} (store version {mark.version}), and "
            f"CometMQ {__version__} reads store versions up to {STORE_VERSION}; nothing was changed",
            next_step="start it with that version or a newer one, or restore an earlier backup",
        )
    return mark


def write_mark(root: Path, found: StoreMark | None, sizes: FileSizes) -> None:
    """Mark a store as written by this version, unless a newer version whose stores this version can read has marked it.

    :raises OSError: the file cannot be written.
    """
    if found is not None and found.version > STORE_VERSION:
        return
    lowest = READABLE_BY if found is None else max(READABLE_BY, found.readable_by)
    mark = StoreMark(readable_by=lowest, sizes=sizes)
    if mark != found:
        fields = {**msgspec.to_builtins(mark), "check": mark.check}
        replace_file(version_file(root), msgspec.json.encode(fields) + b"\n")
