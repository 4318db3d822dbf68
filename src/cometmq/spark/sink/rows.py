"""Rows that cannot be sent: found in blocks, told one by one, with what helps to find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.spark.errors import SinkError

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa


class RowPlace(NamedTuple):
    """Which rows of which partition a batch holds."""

    partition: int
    first_row: int


_TELLING: Final = ("topic", "keys", "tags", "shardingKey")
_SHOWN_CHARS: Final = 80


def refuse_first(batch: pa.RecordBatch, bad: Any, where: RowPlace, fault: str, next_step: str) -> None:
    """Refuse the first row of a batch that is marked.

    :param bad: a boolean for each row, as an Arrow or numpy array without nulls.
    :raises SinkError: one is marked.
    """
    import numpy as np

    marked: npt.NDArray[np.bool_] = np.asarray(bad)
    if marked.any():
        refuse_row(batch, int(marked.argmax()), where, fault, next_step)


def refuse_row(batch: pa.RecordBatch, index: int, where: RowPlace, fault: str, next_step: str) -> None:
    """Refuse one row.

    :raises SinkError: always.
    """
    told = [
        f"{name} {str(value)[:_SHOWN_CHARS]!r}"
        for name in _TELLING
        if name in batch.schema.names and (value := batch.column(name)[index].as_py()) is not None
    ]
    context = f" ({', '.join(told)})" if told else ""
    raise SinkError(
        f"row {where.first_row + index} of partition {where.partition}{context}: {fault}", next_step=next_step
    )
