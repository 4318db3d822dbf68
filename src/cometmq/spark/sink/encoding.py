"""Arrow batches → messages as they stand in the body of a SEND_BATCH_MESSAGE, vectorised.

Rows that must go alone (delayed, or packed) are encoded in the same form and taken apart again, since they are few.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.limits import MAX_SPARK_BATCH_BODY_BYTES
from cometmq.message.batch import PIECE_OVERHEAD_BYTES
from cometmq.spark.sink.columns import DELAY_COLUMNS
from cometmq.spark.sink.identity import TaskIdentity
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.properties import encode_properties_of
from cometmq.spark.sink.rows import RowPlace, refuse_first

if TYPE_CHECKING:
    import numpy.typing as npt

_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The rows of one Arrow batch as messages."""

    batch: pa.RecordBatch
    where: RowPlace
    pieces: pa.BinaryArray
    alone: npt.NDArray[np.bool_]
    """Rows that cannot go with others."""


class MessageParts(NamedTuple):
    """One message, taken out of its piece."""

    flag: int
    body: bytes
    properties: str


def parts_of(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut what Spark hands over where it is too large to be encoded at once."""
    if batch.nbytes <= MAX_SPARK_BATCH_BODY_BYTES or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    for part in (range(half), range(half, batch.num_rows)):
        yield from parts_of(batch.take(pa.array(part, pa.int64())))


def encode_rows(batch: pa.RecordBatch, first_row: int, identity: TaskIdentity, options: SinkOptions) -> EncodedRows:
    """Encode the rows of a batch.

    :raises SinkError: naming the first row that cannot be sent, and why.
    """
    where = RowPlace(identity.partition, first_row)
    count = batch.num_rows
    body = _body(batch, where, options)
    delayed = _delayed(batch, where)
    properties = encode_properties_of(batch, identity.message_ids(first_row, count), where)
    body_lengths = np.asarray(pc.binary_length(body))
    property_lengths = np.asarray(pc.binary_length(properties))
    heads = np.zeros((count, 5), ">i4")
    heads[:, 0] = body_lengths + property_lengths + PIECE_OVERHEAD_BYTES
    if "flag" in batch.schema.names:
        heads[:, 3] = np.asarray(batch.column("flag").fill_null(0))
    heads[:, 4] = body_lengths
    pieces = pc.binary_join_element_wise(
        _fixed(heads, _HEAD.size, count),
        body,
        _fixed(property_lengths.astype(">i2"), _SHORT.size, count),
        properties,
        pa.scalar(b"", pa.binary()),
    )
    if options.compression is not None:
        delayed = delayed | (body_lengths > options.compress_over)
    return EncodedRows(batch, where, pieces, delayed)


def take_apart(piece: bytes) -> MessageParts:
    """The message of one piece."""
    _, _, _, flag, length = _HEAD.unpack_from(piece)
    body_end = _HEAD.size + length
    return MessageParts(flag, piece[_HEAD.size : body_end], piece[body_end + _SHORT.size :].decode())


def _fixed(values: npt.NDArray[Any], width: int, count: int) -> Any:
    array = pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(values)])
    return array.cast(pa.binary())


def _body(batch: pa.RecordBatch, where: RowPlace, options: SinkOptions) -> Any:
    name = "body" if "body" in batch.schema.names else "value"
    body = batch.column(name).cast(pa.binary())
    if body.null_count:
        refuse_first(
            batch, pc.is_null(body), where, f"{name} is null", f"leave such rows out: .where('{name} is not null')"
        )
    lengths = pc.binary_length(body)
    bounds = pc.min_max(lengths)
    if len(body) and bounds["min"].as_py() == 0:
        refuse_first(
            batch, pc.equal(lengths, 0), where, f"{name} is empty", f"leave such rows out: .where(length({name}) > 0)"
        )
    if len(body) and bounds["max"].as_py() > options.max_message_size:
        largest = bounds["max"].as_py()
        refuse_first(
            batch,
            pc.greater(lengths, options.max_message_size),
            where,
            f"{name} has more than {options.max_message_size} bytes (the largest of this batch has {largest})",
            "split it, or raise maxMessageSize at the brokers and option maxMessageSize here",
        )
    return body


def _delayed(batch: pa.RecordBatch, where: RowPlace) -> npt.NDArray[np.bool_]:
    """The rows with a delay, after a check that each has one at most."""
    kinds = np.zeros(batch.num_rows, np.int8)
    for name in DELAY_COLUMNS:
        if name in batch.schema.names:
            column = batch.column(name)
            given = np.asarray(pc.is_valid(column))
            if name != "deliverAt":
                values = np.asarray(column.fill_null(0))
                refuse_first(batch, values < 0, where, f"{name} is negative", "leave it null for no delay")
                given = values > 0
            kinds += given
    refuse_first(
        batch, kinds > 1, where, f"more than one of {', '.join(DELAY_COLUMNS)} is given", "leave the others null"
    )
    return kinds > 0
