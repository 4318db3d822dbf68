"""Archives in any storage, made from records with the job's own decoder and files."""

from __future__ import annotations

import random
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

from tests.spark.lake_files import written_rows

from cometmq.archive.changes import Batch
from cometmq.archive.commits import Covered
from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record
from cometmq.spark.archives.log import ArchiveLog
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.queues import Queue
from cometmq.storage import Storage, open_storage
from cometmq.tier.catalog import Catalog
from cometmq.tier.frames import Read
from cometmq.tier.reader import ArchiveReader
from cometmq.tier.row_groups import RowGroups

QUEUE = Queue("orders", "broker-a", 0)
AT_MS = 1_700_000_000_000
EVER = 2**62
BATCH = 5_000


def make_records(count: int, body_bytes: int = 100, *, first: int = 0, at_ms: int = AT_MS) -> list[bytes]:
    """Records of :data:`QUEUE` that differ in every field; ten of them have one store time."""
    chosen = random.Random(first)
    made: list[bytes] = []
    position = first * 10_000
    for number in range(first, first + count):
        record = encode_record(
            topic=QUEUE.topic,
            queue_id=QUEUE.queue_id,
            queue_offset=number,
            physical_offset=position,
            body=chosen.randbytes(body_bytes // 2) * 2,
            properties_text=f"KEYS\x01key-{number}\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01tag-{number % 3}\x02",
            flag=number % 7,
            born_timestamp=at_ms + number,
            born_host=encode_host("fe80::1" if number % 11 == 0 else f"10.0.0.{number % 5}", 1_000 + number % 3),
            store_timestamp=at_ms + number // 10,
            store_host=encode_host("127.0.0.1", 10_911),
            reconsume_times=number % 2,
            prepared_transaction_offset=number * 3,
        )
        made.append(record)
        position += len(record)
    return made


def write_archive(root: Path, batches: Iterable[list[bytes]], *, begin: int = 0) -> None:
    """Commit each list of records of :data:`QUEUE`. Bodies that cannot be decompressed are archived as stored.

    :param begin: the number of the first commit.
    """
    log = ArchiveLog(root)
    schema = arrow_schema(ARCHIVE_COLUMNS)
    for number, records in enumerate(batches, begin):
        parts = [Records(b"".join(records[at : at + BATCH])) for at in range(0, len(records), BATCH)]
        decoded = chain.from_iterable(
            decode(part, schema, broker_name=QUEUE.broker, on_bad_body=lambda *_: None) for part in parts
        )
        files = written_rows(root, QUEUE, decoded, number)
        covered = Covered(*QUEUE, int(parts[0].queue_offsets[0]), int(parts[-1].queue_offsets[-1]) + 1)
        log.append(Batch("query", number, [covered], files))


def open_reader(storage: Storage | Path) -> ArchiveReader:
    """Open an archive as the reader's process does."""
    catalog = Catalog(open_storage(storage) if isinstance(storage, Path) else storage, QUEUE.broker)
    catalog.refresh()
    return ArchiveReader(catalog, RowGroups(catalog.storage, ThreadPoolExecutor(1)))


def ask(offset: int, *, count: int = 1_000, size: int = 1 << 20, before: int = EVER) -> Read:
    """A question for records of :data:`QUEUE`."""
    return Read(1, QUEUE.topic, QUEUE.queue_id, offset, before, count, size)


def read_all(reader: ArchiveReader, offset: int = 0, *, count: int = 1_000) -> list[bytes]:
    """Read to the end of the archive; return the answers."""
    got: list[bytes] = []
    while offset < EVER:
        answer, payload = reader.read(ask(offset, count=count))
        offset = answer.next_offset
        got.append(bytes(payload))
    return got
