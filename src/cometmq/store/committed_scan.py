"""Which half messages the log's committed messages came from: asked after a crash, when op messages may be missing."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from cometmq.message.record import BLANK_MAGIC, MIN_RECORD_BYTES
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6, TRANSACTION_COMMIT, TRANSACTION_MASK
from cometmq.store.commit_log import CommitLog

_SIZE_MAGIC: Final = struct.Struct(">ii")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


def prepared_offsets(log: CommitLog, start: int) -> Iterator[tuple[int, int]]:
    """Log offset and PREPAREDTRANSACTIONOFFSET of each committed message from the record at log offset ``start`` on."""
    at = start
    while (segment := log.segment_at(at)) is not None and at + MIN_RECORD_BYTES <= log.position:
        view = segment.view
        end = min(segment.end, log.position) - segment.start
        byte = at - segment.start
        while byte + MIN_RECORD_BYTES <= end:
            size, magic = _SIZE_MAGIC.unpack_from(view, byte)
            if magic == BLANK_MAGIC or not MIN_RECORD_BYTES <= size <= end - byte:
                break
            sys_flag = _INT32.unpack_from(view, byte + 36)[0]
            if sys_flag & TRANSACTION_MASK == TRANSACTION_COMMIT:
                hosts = (12 if sys_flag & BORNHOST_V6 else 0) + (12 if sys_flag & STOREHOST_V6 else 0)
                yield segment.start + byte, _INT64.unpack_from(view, byte + 76 + hosts)[0]
            byte += size
        at = segment.end
