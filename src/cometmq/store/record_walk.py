"""Walking along the log without parsing: where each record is, and its bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cometmq.message.record import BLANK_MAGIC, MIN_RECORD_BYTES
from cometmq.store.commit_log import CommitLog

_SIZE_MAGIC: Final = struct.Struct(">ii")


def walk(log: CommitLog, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
    """Log offset and bytes of each record from the one at ``start`` on, below ``end``.

    The views stay valid. May run on another thread than the loop's.
    """
    at = start
    while at < end and (segment := log.segment_at(at)) is not None and segment.start <= at:
        view = segment.view
        limit = min(segment.end, end) - segment.start
        byte = at - segment.start
        while byte + MIN_RECORD_BYTES <= limit:
            size, magic = _SIZE_MAGIC.unpack_from(view, byte)
            if magic == BLANK_MAGIC or not MIN_RECORD_BYTES <= size <= limit - byte:
                break
            yield segment.start + byte, view[byte : byte + size]
            byte += size
        at = segment.end
