"""Rebuilds stored records from the columns of an archive, many at a time.

The parts of a record between its variable-length fields are NumPy structures; Arrow joins them with the columns, so
that no code runs for each record. The records are byte for byte those of the broker's log.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.archive import DataFile
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.hosts import IPV4_HOST_BYTES, IPV6_HOST_BYTES, encode_host, parse_address
from cometmq.message.record import CRC_MASK, MESSAGE_MAGIC, MESSAGE_MAGIC_V2
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6

COLUMNS: Final = (
    *("topic", "queueId", "queueOffset", "body", "flag", "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp"),
    *("storeHost", "reconsumeTimes", "preparedTransactionOffset", "physicalOffset", "bodyCrc", "storedBody"),
    "propertiesText",
)
"""The columns of an archive's file from which records are rebuilt."""
_FIELDS_BYTES: Final = 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 4 + 8 + 4
"""The size of the fixed fields of a record, without its hosts."""
_MAY_BE_NULL: Final = ("body", "storedBody", "propertiesText")
_TOPIC_V1_MAX: Final = 127
_TEXTS: Final = pa.binary()


_JOINED_BYTES_MAX: Final = 2**31 - 1
"""Maximum size of the records of a row group together, since Arrow addresses them with 31 bits."""


class DamagedRecordsError(Exception):
    """Columns do not contain the records of their queue."""


class RebuiltRecords:
    """Records of one queue in ascending order of offsets: their bytes, and the fields by which they are found."""

    def __init__(self, table: Any, file: DataFile) -> None:
        """Rebuild the records from a table with :data:`COLUMNS`.

        :param file: the file of the table.
        :raises DamagedRecordsError: the table does not contain records of the file's queue.
        """
        _check_queue(table, file)
        self.offsets: npt.NDArray[np.int64] = _numbers(table, "queueOffset", np.int64)
        self.times_ms: npt.NDArray[np.int64] = _milliseconds(table, "storeTimestamp")
        self.positions: npt.NDArray[np.int64] = _numbers(table, "physicalOffset", np.int64)
        """The offsets in the broker's log."""
        _check_offsets(self.offsets, file)
        joined = _join(table, self)
        _, ends, data = joined.buffers()
        self.ends: npt.NDArray[np.int32] = np.frombuffer(ends, np.int32)[
            joined.offset : joined.offset + len(joined) + 1
        ]
        """The beginning of each record in :attr:`data`, and the end of the last one."""
        self.data = memoryview(data) if data is not None else memoryview(b"")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size(self) -> int:
        """The size in memory, in bytes."""
        return len(self.data) + len(self) * 28

    def slice(self, first: int, end: int) -> memoryview:
        """Return the bytes of the records with these numbers."""
        return self.data[self.ends[first] : self.ends[end]]


def warm_up() -> None:
    """Load the modules that pyarrow otherwise loads with the first row group, which takes a tenth of a second."""
    pa.chunked_array([[0]]).to_numpy()


def _check_queue(table: Any, file: DataFile) -> None:
    for name in COLUMNS:
        if name not in _MAY_BE_NULL and table.column(name).null_count:
            raise DamagedRecordsError(f"{table.column(name).null_count} messages have no {name}")
    for name, value in (("topic", file.topic), ("queueId", file.queue_id)):
        if not pc.all(pc.equal(table.column(name), value)).as_py():
            raise DamagedRecordsError(f"it has messages with another {name} than {value}")


def _check_offsets(offsets: npt.NDArray[np.int64], file: DataFile) -> None:
    if (offsets[:-1] >= offsets[1:]).any():
        raise DamagedRecordsError("its offsets do not rise")
    if not file.first <= offsets[0] <= offsets[-1] < file.end:
        raise DamagedRecordsError(f"it has the offsets {offsets[0]} to {offsets[-1]}")


def _check_lengths(
    flags: npt.NDArray[np.int32], lengths: list[npt.NDArray[np.int64]], sizes: npt.NDArray[np.int64]
) -> None:
    born, stored, _, properties = lengths
    for name, found, flag in (("bornHost", born, BORNHOST_V6), ("storeHost", stored, STOREHOST_V6)):
        if (found != np.where(flags & flag, IPV6_HOST_BYTES, IPV4_HOST_BYTES)).any():
            raise DamagedRecordsError(f"it has another kind of {name} than its sysFlag says")
    if properties.max() > MAX_PROPERTIES_BYTES:
        raise DamagedRecordsError(f"it has {properties.max()} bytes of properties in a message")
    if int(sizes.sum()) > _JOINED_BYTES_MAX:
        raise DamagedRecordsError(f"a row group has {int(sizes.sum())} bytes of messages")


def _numbers(table: Any, name: str, kind: Any) -> npt.NDArray[Any]:
    return np.ascontiguousarray(table.column(name).to_numpy(), dtype=kind)


def _milliseconds(table: Any, name: str) -> npt.NDArray[np.int64]:
    microseconds: npt.NDArray[np.int64] = table.column(name).cast(pa.int64()).to_numpy()
    return microseconds // 1000


def _join(table: Any, known: RebuiltRecords) -> Any:
    count = table.num_rows
    bodies = pc.coalesce(_binary(table, "storedBody"), _binary(table, "body"))
    properties = pc.fill_null(_binary(table, "propertiesText"), b"")
    if bodies.null_count:
        raise DamagedRecordsError(f"{bodies.null_count} messages have no body")
    topic = _binary(table, "topic")[0].as_py()
    is_wide = len(topic) > _TOPIC_V1_MAX
    flags = _numbers(table, "sysFlag", np.int32)
    born_hosts, stored_hosts = (_hosts(table, name) for name in ("bornHost", "storeHost"))
    name = len(topic).to_bytes(2 if is_wide else 1, "big") + topic
    lengths = [_lengths(column) for column in (born_hosts, stored_hosts, bodies, properties)]
    sizes = np.sum(lengths, axis=0) + (_FIELDS_BYTES + len(name) + 2)
    _check_lengths(flags, lengths, sizes)
    heads = _structures(
        size=(sizes, ">i4"),
        magic=(MESSAGE_MAGIC_V2 if is_wide else MESSAGE_MAGIC, ">i4"),
        body_crc=(_numbers(table, "bodyCrc", np.int64) & CRC_MASK, ">i4"),
        queue_id=(_numbers(table, "queueId", np.int32), ">i4"),
        flag=(_numbers(table, "flag", np.int32), ">i4"),
        queue_offset=(known.offsets, ">i8"),
        physical_offset=(known.positions, ">i8"),
        sys_flag=(flags, ">i4"),
        born_timestamp=(_milliseconds(table, "bornTimestamp"), ">i8"),
    )
    between = _structures(store_timestamp=(known.times_ms, ">i8"))
    behind = _structures(
        reconsume_times=(_numbers(table, "reconsumeTimes", np.int32), ">i4"),
        prepared=(_numbers(table, "preparedTransactionOffset", np.int64), ">i8"),
        body_length=(lengths[2], ">i4"),
    )
    ends = _structures(
        topic=(np.frombuffer(name, f"V{len(name)}").repeat(count), f"V{len(name)}"), length=(lengths[3], ">i2")
    )
    return pc.binary_join_element_wise(
        heads, born_hosts, between, stored_hosts, behind, bodies, ends, properties, pa.scalar(b"", _TEXTS)
    )


def _binary(table: Any, name: str) -> Any:
    column = table.column(name)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(_TEXTS)


def _lengths(column: Any) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(column).to_numpy(zero_copy_only=False), np.int64)


def _hosts(table: Any, name: str) -> Any:
    """Return a column of addresses in their stored form. There are few different ones."""
    column = table.column(name)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    texts = column.dictionary_encode()
    stored = [encode_host(*parse_address(text)) for text in texts.dictionary.to_pylist()]
    return pa.array(stored, _TEXTS).take(texts.indices)


def _structures(**fields: tuple[Any, str]) -> Any:
    """Return consecutive fields of all records as an Arrow array, with one value for each record."""
    kind = np.dtype([(name, form) for name, (_, form) in fields.items()])
    count = next(len(values) for values, _ in fields.values() if isinstance(values, np.ndarray))
    packed = np.empty(count, kind)
    for name, (values, _) in fields.items():
        packed[name] = values
    ends = np.arange(0, (count + 1) * kind.itemsize, kind.itemsize, dtype=np.int32)
    return pa.Array.from_buffers(_TEXTS, count, [None, pa.py_buffer(ends), pa.py_buffer(packed)])
