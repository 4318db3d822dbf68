"""What a process of the demo saw: one row for each message, kept in memory, written as a NumPy file."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

ROW: Final = np.dtype([("event", "<i8"), ("queue", "<i4"), ("offset", "<i8"), ("at_ms", "<i8")])
"""Number of the event, queue id, queue offset, time it was seen."""

Rows = NDArray[np.void]


class Ledger:
    """Rows in the order they were seen; 28 bytes each."""

    def __init__(self) -> None:
        self._columns = {name: array("q") for name in ROW.names or ()}

    def __len__(self) -> int:
        return len(self._columns["event"])

    def add(self, event: int, queue: int, offset: int, at_ms: int) -> None:
        """Add one row."""
        columns = self._columns
        columns["event"].append(event)
        columns["queue"].append(queue)
        columns["offset"].append(offset)
        columns["at_ms"].append(at_ms)

    def save(self, path: Path) -> None:
        """Write all rows, so that a reader sees all of them or no file."""
        rows = np.empty(len(self), ROW)
        for name, column in self._columns.items():
            rows[name] = column
        partial = path.with_suffix(".partial")
        with partial.open("wb") as out:
            np.save(out, rows)
        partial.rename(path)


def load(paths: list[Path]) -> Rows:
    """Read the ledgers of several processes into one."""
    return np.concatenate([np.load(path) for path in paths]) if paths else np.empty(0, ROW)


def read_archive(directory: Path) -> Rows:
    """Read the archive's Parquet files into rows."""
    import msgspec
    import pyarrow as pa
    import pyarrow.parquet as parquet

    from cometmq.cli.demo.orders import OrderEvent
    from cometmq.spark.archive_log import ArchiveLog

    decode = msgspec.json.Decoder(OrderEvent).decode
    parts = []
    for file in ArchiveLog(directory).files():
        table = parquet.read_table(
            pa.BufferReader((directory / file.path).read_bytes()),
            columns=["queueId", "queueOffset", "body", "storeTimestamp"],
        )
        rows = np.empty(table.num_rows, ROW)
        rows["event"] = [decode(body).number for body in table["body"].to_pylist()]
        rows["queue"] = table["queueId"].to_numpy()
        rows["offset"] = table["queueOffset"].to_numpy()
        rows["at_ms"] = table["storeTimestamp"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy()
        parts.append(rows)
    return np.concatenate(parts) if parts else np.empty(0, ROW)
