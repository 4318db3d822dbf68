"""The executors' side of the mask job: rows of a source become files of an archive, masked.

The masked message is encoded as a stored record and decoded again, so that all columns of the archive tell of it and
of nothing else: body, its CRC, sizes, keys, tags, properties and their text. What cannot be masked goes apart: a line
of JSON that says where it stands in the source and why, and nothing of what is in it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cometmq.message.hosts import encode_host, parse_address
from cometmq.message.record import encode_record
from cometmq.message.sysflag import COMPRESSED, COMPRESSION_TYPE_MASK
from cometmq.spark.apart import ApartFiles
from cometmq.spark.archive_commit import DataFile
from cometmq.spark.archive_writer import QueueWriter
from cometmq.spark.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.decode import Records, decode
from cometmq.spark.errors import MaskError
from cometmq.spark.mask_keys import KEY_BYTES, KEY_ID_BYTES, DataKey, KeyStore, SecretPlace
from cometmq.spark.mask_message import Masker, Plain, RefusedError
from cometmq.spark.mask_rules import ENCRYPT, FAIL, HASH, MaskRules
from cometmq.spark.queues import Queue

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_DDL: Final = "result string"
APART: Final = "_mask/apart"
"""Directory of what was not copied, below that of the copy."""
MASKED_COLUMNS: Final = (
    *("topic", "brokerName", "queueId", "queueOffset", "physicalOffset", "body", "propertiesText", "flag", "sysFlag"),
    *("bornTimestamp", "bornHost", "storeTimestamp", "storeHost", "reconsumeTimes", "preparedTransactionOffset"),
)
"""What of a message is needed to make it anew."""
_WRITTEN_ROWS: Final = 4096
"""Messages that are masked together, and whose keys are fetched together."""
_WRITTEN_BYTES: Final = 8 * 1024 * 1024
"""Bytes of records that are decoded and written together; one may be larger."""
_UNREADABLE: Final = RefusedError("its body cannot be unpacked")


@dataclass(frozen=True, slots=True)
class MaskTask:
    """What every task is told; secrets are only named."""

    root: str | None
    """Directory of the copy; without one messages are masked and counted only …"""
    rules: MaskRules
    keys: str | None
    """File of the keys, where a rule encrypts; … with keys that nobody keeps."""
    master: SecretPlace
    hash_secret: SecretPlace

    @contextmanager
    def masker(self) -> Iterator[Masker]:
        """What applies the rules here, with the keys open for the length of the block.

        :raises OptionError: a secret is not there.
        :raises MaskError: the keys cannot be opened.
        """
        secret = self.hash_secret.read() if HASH in self.rules.actions else None
        if ENCRYPT not in self.rules.actions or self.keys is None:
            yield Masker(self.rules, _passing_keys, secret)
            return
        with closing(KeyStore(self.keys, self.master, make=True)) as store:
            yield Masker(self.rules, store.keys_for, secret)


def _passing_keys(subjects: Iterable[str]) -> dict[str, DataKey | None]:
    """Keys that nobody keeps."""
    return {subject: DataKey(os.urandom(KEY_ID_BYTES), os.urandom(KEY_BYTES)) for subject in subjects}


class MaskResult(msgspec.Struct, frozen=True):
    """What a task tells: a file, or what it counted."""

    file: DataFile | None = None
    messages: int = 0
    """Masked by the whole task."""
    values: dict[str, int] | None = None
    """Masked values, by the field of the rule."""
    apart: dict[str, int] | None = None
    """Messages that are not in the copy, by reason."""


def mask_batches(task: MaskTask, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of one Spark partition, and yield rows of ``RESULT_DDL``.

    :raises MaskError: a message cannot be masked, and the rules say that this fails the job.
    """
    import pyarrow as pa

    with task.masker() as masker:
        results = _masked(task, masker, batches)
    texts = [msgspec.json.encode(result).decode() for result in results]
    yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], names=["result"])


def _masked(task: MaskTask, masker: Masker, batches: Iterable[pa.RecordBatch]) -> list[MaskResult]:
    writing = _Writing(None if task.root is None else Path(task.root))
    messages = 0
    refused: dict[str, int] = {}
    for batch in batches:
        for first in range(0, batch.num_rows, _WRITTEN_ROWS):
            rows = _rows(batch.slice(first, _WRITTEN_ROWS))
            readable = (row for row in rows if row["body"] is not None)
            outcomes = iter(masker.masked(Plain(row["body"], row["propertiesText"] or "") for row in readable))
            for row in rows:
                reason = writing.add(row, _UNREADABLE if row["body"] is None else next(outcomes))
                if reason is None:
                    messages += 1
                    continue
                refused[reason] = refused.get(reason, 0) + 1
                if task.rules.not_json == FAIL:
                    raise MaskError(
                        f"the message at offset {row['queueOffset']} of queue {row['queueId']} of {row['topic']} at "
                        f"{row['brokerName']} cannot be masked: {reason}",
                        next_step="leave such messages out (--not-json apart), or copy them without body (drop)",
                    )
    results = [MaskResult(file=file) for file in writing.close()]
    return [*results, MaskResult(messages=messages, values=dict(masker.counts), apart=refused)]


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with times in ms: a producer may claim a born time that no calendar has."""
    import pyarrow as pa

    columns = {name: batch.column(name) for name in MASKED_COLUMNS}
    for name in ("bornTimestamp", "storeTimestamp"):
        columns[name] = columns[name].cast(pa.int64())
    rows: list[dict[str, Any]] = pa.RecordBatch.from_pydict(columns).to_pylist()
    for row in rows:
        row["bornTimestamp"] //= 1000
        row["storeTimestamp"] //= 1000
    return rows


class _Writing:
    """Cuts rows into stretches of one queue with rising offsets, each written by its own writer."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._schema = arrow_schema(ARCHIVE_COLUMNS)
        self._queue: Queue | None = None
        self._last = -1
        self._writer: QueueWriter | None = None
        self._records: list[bytes] = []
        self._bytes = 0
        self._apart = ApartFiles(None if root is None else root / APART)
        self._files: list[DataFile] = []

    def add(self, row: dict[str, Any], outcome: Plain | RefusedError) -> str | None:
        """Take a message; the reason, if it goes apart."""
        queue = Queue(row["topic"], row["brokerName"], row["queueId"])
        if queue != self._queue or row["queueOffset"] <= self._last:
            self._end()
            self._queue = queue
            self._writer = None if self._root is None else QueueWriter(self._root, queue, self._schema)
        self._last = row["queueOffset"]
        if isinstance(outcome, Plain):
            try:
                record = _record(row, outcome)
            except ValueError:
                outcome = RefusedError("its properties are too long with what stands for masked values")
            else:
                self._records.append(record)
                self._bytes += len(record)
                if len(self._records) >= _WRITTEN_ROWS or self._bytes >= _WRITTEN_BYTES:
                    self._flush()
                return None
        self._apart.add(queue, self._last, str(outcome))
        return str(outcome)

    def _flush(self) -> None:
        if self._records and self._writer is not None and self._queue is not None:
            records = Records(b"".join(self._records))
            for batch in decode(records, self._schema, broker_name=self._queue.broker):
                self._writer.add(batch)
        self._records, self._bytes = [], 0

    def _end(self) -> None:
        self._flush()
        self._apart.flush()
        if self._writer is not None:
            self._files += self._writer.close()

    def close(self) -> list[DataFile]:
        """Finish all files."""
        self._end()
        return self._files


def _record(row: dict[str, Any], masked: Plain) -> bytes:
    """The stored record of a masked message; its body is not packed.

    :raises ValueError: its properties are too long.
    """
    return encode_record(
        topic=row["topic"],
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        body=masked.body,
        properties_text=masked.properties_text,
        flag=row["flag"],
        sys_flag=row["sysFlag"] & ~(COMPRESSED | COMPRESSION_TYPE_MASK),
        born_timestamp=row["bornTimestamp"],
        born_host=encode_host(*parse_address(row["bornHost"])),
        store_timestamp=row["storeTimestamp"],
        store_host=encode_host(*parse_address(row["storeHost"])),
        reconsume_times=row["reconsumeTimes"],
        prepared_transaction_offset=row["preparedTransactionOffset"],
    )
