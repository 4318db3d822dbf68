"""Tasks that index an archive by key: they turn messages into entries, and write the entries of each bucket sorted.

A million messages are only a few dozen calls of Arrow and NumPy. Spark moves the entries between tasks in blocks, each
of which is one row: entries as rows would cost Spark several times as much as all other work.

* :func:`make_blocks` reads data files, and divides their entries by bucket.
* :func:`write_buckets` sorts the entries of some buckets, and writes each bucket to a file of its own. What does not
  fit into the memory of a task is sorted in parts, which are in temporary files until they are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from tempfile import TemporaryFile
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.archive.files import DataFile
from cometmq.checksum import crc32
from cometmq.spark.archives.files import read_batches
from cometmq.spark.jobs.task_files import unique_path, write_file
from cometmq.spark.records.body_columns.conforming import conform
from cometmq.spark.records.columns import arrow_schema
from cometmq.spark.records.queues import Queue
from cometmq.spark.records.worker_memory import lasting_worker
from cometmq.storage import Storage

BUCKETS: Final = 64
BLOCK_DDL: Final = "bucket int, entries binary, messages string"
"""A block: the entries of a bucket as an Arrow stream, and the numbers of messages and entries that were read since the
task's previous blocks, as JSON.
"""
Buckets = npt.NDArray[np.uint8]
_READ_ROWS: Final = 8192
"""Maximum number of messages that are turned into entries at a time."""
_READ_BYTES: Final = 1024 * 1024
"""Number of bytes of KEYS that are turned into entries at a time. A message may have 16,000 keys of one letter, and
each key needs about 80 bytes meanwhile.
"""
_DICTIONARY: Final = ["topic", "brokerName"]
"""Columns with few distinct values, which are dictionary-encoded. A dictionary would not help other columns."""
_COLUMNS: Final = ["queueOffset", "storeTimestamp", "uniqKey", "keys"]
_BLOCKS_BYTES: Final = 32 * 1024 * 1024
"""Number of bytes of entries that a task gathers before it divides them by bucket."""
_SORTED_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes of entries that are sorted in memory."""
_MERGED_ROWS: Final = 16_384
"""Number of rows of a sorted part that are in memory while parts are merged."""
_BETWEEN: Final = "\x02"
"""A character that no key contains: it separates properties."""
_BLOCK: Final = pa.schema([("bucket", pa.int32()), ("entries", pa.binary()), ("messages", pa.string())])
_ENTRIES: Final = pa.schema(
    [("key", pa.string()), ("queue", pa.int32()), ("queueOffset", pa.int64()), ("storeTimestamp", pa.int64())]
)
"""Entries between the tasks: the number of their queue in :class:`Queues`, and the store time in µs since 1970."""


class Queues:
    """The queues of an archive whose messages are indexed. Entries contain the numbers of their queues."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self._queues: Final = sorted(queues)
        self._numbers: Final = {queue: number for number, queue in enumerate(self._queues)}

    def number(self, queue: Queue) -> int:
        """Return the number of a queue."""
        return self._numbers[queue]

    @cached_property
    def _columns(self) -> dict[str, pa.Array]:
        return {
            "topic": pa.array([queue.topic for queue in self._queues], pa.string()),
            "brokerName": pa.array([queue.broker for queue in self._queues], pa.string()),
            "queueId": pa.array([queue.queue_id for queue in self._queues], pa.int32()),
        }

    @cached_property
    def _topics(self) -> pa.Array | None:
        """The beginnings of sorted names; None if all queues have the same topic."""
        topics = [f"{queue.topic}\0" for queue in self._queues]
        return pa.array(topics, pa.string()) if len(set(topics)) > 1 else None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the columns, which each task makes itself."""
        return {"_queues": self._queues, "_numbers": self._numbers}

    def names(self, entries: pa.RecordBatch) -> pa.Array:
        """Return texts that have the order of topic and key."""
        if self._topics is None:
            return entries.column("key")
        return pc.binary_join_element_wise(self._topics.take(entries.column("queue")), entries.column("key"), "")

    def rows(self, entries: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of an index."""
        numbers = entries.column("queue")
        columns = {name: values.take(numbers) for name, values in self._columns.items()}
        columns["queueOffset"] = entries.column("queueOffset")
        columns["storeTimestamp"] = entries.column("storeTimestamp").cast(pa.timestamp("us", "UTC"))
        columns["key"] = entries.column("key")
        return pa.RecordBatch.from_pydict(columns)


class Counts(msgspec.Struct):
    """Numbers of messages and of entries, by topic."""

    messages: dict[str, int] = {}
    keys: dict[str, int] = {}

    @classmethod
    def total(cls, parts: Iterable[Counts]) -> Counts:
        """Add up counts."""
        messages: Counter[str] = Counter()
        keys: Counter[str] = Counter()
        for part in parts:
            messages.update(part.messages)
            keys.update(part.keys)
        return cls(dict(messages), dict(keys))


class EntryFile(msgspec.Struct, frozen=True):
    """A file with entries of one bucket."""

    path: str
    bytes: int
    bucket: int


class Written(msgspec.Struct):
    """The result of a task that writes: its files, and the messages and entries that were counted."""

    files: list[EntryFile]
    counts: Counts


@dataclass(frozen=True)
class NewMessages:
    """The messages of an archive that are not indexed yet: ranges of offsets in data files."""

    storage: Storage
    ranges: Mapping[Queue, tuple[int, int]]
    """The first offset of each queue, and the offset after its last one."""

    @cached_property
    def queues(self) -> Queues:
        """Return all queues."""
        return Queues(self.ranges)

    def read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        """Yield the messages in a data file that belong to its queue's range.

        :raises ArchiveError: the file is lost or damaged.
        """
        first, end = self.ranges[file.queue]
        schema = arrow_schema(_COLUMNS)
        for found in read_batches(self.storage, file, _COLUMNS, rows=_READ_ROWS):
            for batch in _divided(conform(found, schema)):
                offsets = batch.column("queueOffset").to_numpy()
                wanted = (offsets >= first) & (offsets < end)
                yield batch if wanted.all() else batch.filter(pa.array(wanted))


def _divided(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide messages so that the KEYS of no part have more than ``_READ_BYTES``, unless one message has more."""
    sizes = pc.fill_null(pc.binary_length(batch.column("keys")), 0).to_numpy()
    ends = np.cumsum(sizes, dtype=np.int64)
    first = 0
    while first < len(ends):
        before = int(ends[first]) - int(sizes[first])
        end = max(int(np.searchsorted(ends, before + _READ_BYTES, "right")), first + 1)
        yield batch.slice(first, end - first)
        first = end


def count_new(new: NewMessages, files: Sequence[DataFile]) -> Iterator[Counts]:
    """Count the messages and entries of data files."""
    for file in files:
        parts = [(batch.num_rows, len(_entries(batch, file.topic, 0)[0])) for batch in new.read(file)]
        messages, keys = (sum(part) for part in zip(*parts, strict=True)) if parts else (0, 0)
        if messages:
            yield Counts({file.topic: messages}, {file.topic: keys})


def make_blocks(new: NewMessages, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of data files in blocks."""
    gathered: list[tuple[pa.RecordBatch, Buckets]] = []
    counts: list[Counts] = []
    size = 0
    for file in files:
        number = new.queues.number(file.queue)
        for batch in new.read(file):
            if not batch.num_rows:
                continue
            entries, buckets = _entries(batch, file.topic, number)
            gathered.append((entries, buckets))
            counts.append(Counts({file.topic: batch.num_rows}, {file.topic: len(entries)}))
            size += entries.nbytes
            if size >= _BLOCKS_BYTES:
                yield from _blocks(gathered, counts)
                gathered, counts, size = [], [], 0
    if counts:
        yield from _blocks(gathered, counts)


def _blocks(gathered: list[tuple[pa.RecordBatch, Buckets]], counts: list[Counts]) -> Iterator[pa.RecordBatch]:
    """Divide entries by bucket. The first block also has the counts."""
    entries = _joined([part for part, _ in gathered])
    buckets = np.concatenate([part for _, part in gathered])
    order = np.argsort(buckets, kind="stable")
    divided = entries.take(pa.array(order))
    edges = np.searchsorted(buckets[order], np.arange(BUCKETS + 1)).tolist()
    total: str | None = msgspec.json.encode(Counts.total(counts)).decode()
    for bucket, (first, end) in enumerate(pairwise(edges)):
        if first == end and (bucket or len(entries)):
            continue
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, _ENTRIES) as writer:
            writer.write_batch(divided.slice(first, end - first))
        columns = [pa.array([bucket], pa.int32()), _binary(stream.getvalue()), pa.array([total], pa.string())]
        yield pa.RecordBatch.from_arrays(columns, schema=_BLOCK)
        total = None


def _binary(buffer: pa.Buffer) -> pa.Array:
    """Return an array with one value, without copying it."""
    offsets = pa.py_buffer(np.array([0, buffer.size], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, buffer])


def _entries(batch: pa.RecordBatch, topic: str, queue: int) -> tuple[pa.RecordBatch, Buckets]:
    """Return the entries of messages of one queue, and the buckets of these entries."""
    more = pc.replace_substring(batch.column("keys"), " ", _BETWEEN)
    # not null_handling="skip": Arrow then leaves out the rows that have only nulls
    every = pc.binary_join_element_wise(
        batch.column("uniqKey"), more, _BETWEEN, null_handling="replace", null_replacement=""
    )
    lists = pc.split_pattern(every, _BETWEEN)
    keys, messages = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    hashes = _hashes(topic, keys)
    kept = (pc.binary_length(keys).to_numpy() > 0) & ~_repeated(keys, messages, hashes)
    if not kept.all():
        keys, messages, hashes = keys.filter(pa.array(kept)), messages[kept], hashes[kept]
    columns = [
        keys,
        pa.array(np.full(len(keys), queue, np.int32)),
        pa.array(batch.column("queueOffset").to_numpy()[messages]),
        pa.array(batch.column("storeTimestamp").cast(pa.int64()).to_numpy()[messages]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_ENTRIES), (hashes % BUCKETS).astype(np.uint8)


def bucket_of(topic: str, key: str) -> int:
    """Return the bucket of a key."""
    return (crc32(f"{topic}#{key}".encode()) & 0xFFFFFFFF) % BUCKETS


def _hashes(topic: str, keys: pa.StringArray) -> npt.NDArray[np.uint32]:
    begun = crc32(f"{topic}#".encode())
    texts = keys.cast(pa.binary()).to_pylist()
    return np.fromiter((crc32(text, begun) for text in texts), np.uint32, len(texts))


def _repeated(
    keys: pa.StringArray, messages: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """Find the keys that the same message has before. Few keys have the hash of another key of their message."""
    found = np.zeros(len(keys), np.bool_)
    codes = messages.astype(np.int64) << 32 | hashes
    order = np.argsort(codes, kind="stable")
    equal = np.flatnonzero(codes[order[1:]] == codes[order[:-1]])
    seen: set[tuple[int, str]] = set()
    for at in equal.tolist():
        first, second = int(order[at]), int(order[at + 1])
        seen.add((int(codes[first]), keys[first].as_py()))
        name = int(codes[second]), keys[second].as_py()
        found[second] = name in seen
        seen.add(name)
    return found


def write_buckets(storage: Storage, run: str, queues: Queues, blocks: Iterable[pa.RecordBatch]) -> Iterator[Written]:
    """Sort the entries in blocks by topic and key, and write each bucket to a file in the directory ``run``."""
    counts: list[Counts] = []
    with lasting_worker(), Sorter(queues) as sorter:
        for batch in blocks:
            buckets, entries, texts = (batch.column(name) for name in _BLOCK.names)
            counts += [msgspec.json.decode(text, type=Counts) for text in texts.to_pylist() if text]
            for bucket, block in zip(buckets.to_pylist(), entries, strict=True):
                sorter.add(bucket, pa.ipc.open_stream(block.as_buffer()).read_all().to_batches())
        files = []
        for bucket in sorter.buckets():
            rows = (queues.rows(part) for part in sorter.merged(bucket))
            file = write_file(storage, unique_path(f"{run}/bucket={bucket}"), rows, dictionary=_DICTIONARY)
            if file is not None:
                files.append(EntryFile(file.path, file.bytes, bucket))
    yield Written(files, Counts.total(counts))


class Sorter:
    """Sorts the entries of each bucket by topic and key, within the memory of a task."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._gathered: dict[int, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._parts: list[tuple[pa.ipc.RecordBatchFileReader, dict[int, range]]] = []
        """Files with sorted entries, and the numbers of each bucket's batches in them."""
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._files.close()

    def add(self, bucket: int, entries: Iterable[pa.RecordBatch]) -> None:
        """Add entries to a bucket."""
        for batch in entries:
            if batch.num_rows:
                self._gathered.setdefault(bucket, []).append(batch)
                self._bytes += batch.nbytes
        if self._bytes >= _SORTED_BYTES:
            self._put_away()

    def buckets(self) -> list[int]:
        """Return the buckets that have entries."""
        return sorted({*self._gathered, *(bucket for _, numbers in self._parts for bucket in numbers)})

    def merged(self, bucket: int) -> Iterator[pa.RecordBatch]:
        """Yield the entries of a bucket, sorted. They can be read once."""
        parts: list[Iterator[pa.RecordBatch]] = [
            map(reader.get_batch, numbers[bucket]) for reader, numbers in self._parts if bucket in numbers
        ]
        if bucket in self._gathered:
            parts.append(_slices(self._sorted(self._gathered.pop(bucket)), _MERGED_ROWS))
        if len(parts) == 1:
            yield from parts[0]
        else:
            yield from self._merge([_Head(self._queues, part) for part in parts])

    def _put_away(self) -> None:
        """Write what is gathered to a temporary file, sorted."""
        from cometmq.spark.store.place import spool_directory

        file = self._files.enter_context(TemporaryFile(dir=spool_directory()))  # noqa: SIM115 (the stack closes it)
        numbers: dict[int, range] = {}
        written = 0
        with pa.ipc.new_file(file, _ENTRIES, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for bucket in sorted(self._gathered):
                first = written
                for part in _slices(self._sorted(self._gathered.pop(bucket)), _MERGED_ROWS):
                    writer.write_batch(part)
                    written += 1
                numbers[bucket] = range(first, written)
        self._bytes = 0
        self._parts.append((self._files.enter_context(pa.ipc.open_file(file)), numbers))

    def _sorted(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        entries = _joined(parts)
        parts.clear()  # its memory is free before the sorted entries need some
        return entries.take(pc.sort_indices(self._queues.names(entries)))

    def _merge(self, heads: list[_Head]) -> Iterator[pa.RecordBatch]:
        """Repeat: take from each part what comes before the end of any part's batch, and sort it."""
        while heads := [head for head in heads if head.fill()]:
            end = min(head.last for head in heads)
            yield from _slices(self._sorted([head.take_to(end) for head in heads]), _MERGED_ROWS)


class _Head:
    """The batch of a sorted part that is being merged."""

    def __init__(self, queues: Queues, batches: Iterator[pa.RecordBatch]) -> None:
        self._queues = queues
        self._batches = batches
        self._batch = pa.RecordBatch.from_pylist([], schema=_ENTRIES)
        self._names: pa.Array = pa.array([], pa.string())
        self.last = ""
        """The name of the batch's last entry."""

    def fill(self) -> bool:
        """Read the next batch if this one is used up. Return False at the end."""
        while not len(self._batch):
            following = next(self._batches, None)
            if following is None:
                return False
            self._batch, self._names = following, self._queues.names(following)
            self.last = self._names[-1].as_py()
        return True

    def take_to(self, end: str) -> pa.RecordBatch:
        """Remove and return the entries up to a name."""
        count = bisect_right(range(len(self._names)), end, key=lambda number: self._names[number].as_py())
        taken = self._batch.slice(0, count)
        self._batch, self._names = self._batch.slice(count), self._names.slice(count)
        return taken


def _joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(parts, _ENTRIES).combine_chunks()
    return pa.RecordBatch.from_arrays([column.chunk(0) for column in table.columns], schema=_ENTRIES)


def _slices(batch: pa.RecordBatch, rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
