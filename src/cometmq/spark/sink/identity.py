"""Which task this is, and the ids of its messages: the same rows get the same ids whenever they are sent again.

A message id (UNIQ_KEY) has 32 hex digits in the layout of RocketMQ's clients: ten bytes of a hash of the task and of
the row's number without its low 16 bits, four zero bytes where clients have a time, and the low 16 bits.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ID_CHARS: Final = 32
_PREFIX_BYTES: Final = 10
_BLOCK_BITS: Final = 16


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """What does not change when a task is repeated."""

    producer: str
    """The query of a stream, or one write of a batch."""
    batch: int
    """The micro-batch of a stream; 0 for a batch."""
    partition: int

    def message_id(self, row: int) -> str:
        """The id of one row."""
        return f"{self._prefix(row >> _BLOCK_BITS)}{row & 0xFFFF:04X}"

    def message_ids(self, first: int, count: int) -> npt.NDArray[np.uint8]:
        """The ids of ``count`` rows from ``first`` on, as ASCII of shape ``(count, 32)``."""
        import numpy as np

        ids = np.empty((count, ID_CHARS), np.uint8)
        done = 0
        while done < count:
            row = first + done
            part = min(count - done, (1 << _BLOCK_BITS) - (row & 0xFFFF))
            ids[done : done + part, :-4] = np.frombuffer(self._prefix(row >> _BLOCK_BITS).encode(), np.uint8)
            ids[done : done + part, -4:] = _low_digits()[row & 0xFFFF : (row & 0xFFFF) + part]
            done += part
        return ids

    def _prefix(self, block: int) -> str:
        text = f"{self.producer}\n{self.batch}\n{self.partition}\n{block}"
        return hashlib.blake2b(text.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper() + "00000000"


@cache
def _low_digits() -> npt.NDArray[np.uint8]:
    """``0000`` to ``FFFF`` as ASCII, shape ``(65536, 4)``."""
    import numpy as np

    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
    numbers = np.arange(1 << _BLOCK_BITS)
    return digits[np.stack([numbers >> shift & 15 for shift in (12, 8, 4, 0)], axis=1)]


def task_attempt() -> int:
    """The number of this attempt of the task of Spark that this process runs now, from 0; only inside a task."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return int(context.attemptNumber())


def task_identity(producer: str | None, *, streaming: bool) -> TaskIdentity:
    """Which task of Spark this process runs now; only inside a task.

    :param producer: of a batch, or what the user calls a stream; otherwise that is the id of its query.
    """
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    if not streaming:
        return TaskIdentity(producer or "", 0, context.partitionId())
    query = producer or context.getLocalProperty("sql.streaming.queryId")
    batch = int(context.getLocalProperty("streaming.sql.batchId"))
    return TaskIdentity(query, batch, context.partitionId())
