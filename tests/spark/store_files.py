"""Stores made without a broker, damage to their files, and what a reader sees in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cometmq.message.hosts import encode_host
from cometmq.message.record import encode_record
from cometmq.spark.records.decode import Records
from cometmq.spark.store.options import parse_store_options
from cometmq.spark.store.reader import StoreScan
from cometmq.spark.store.scan import splits
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import MessageStore
from cometmq.store.write_batch import NewRecord
from cometmq.testing import VirtualClock

Row = tuple[str, int, int, str]
HOST = encode_host("127.0.0.1", 10911)


def rows_of(directory: str | Path, **options: Any) -> list[Row]:
    """Topic, queue, offset and SHA-256 of every record that a reader of the store sees."""
    parsed = parse_store_options({"path": str(directory)} | {name: str(value) for name, value in options.items()})
    scan = StoreScan(parsed)
    found: list[Row] = []
    for split in splits(parsed):
        for records in scan.records(split):
            found += _rows(records)
    return found


def _rows(records: Records) -> list[Row]:
    topics = records.topics().to_pylist()
    starts, sizes = records.starts.tolist(), records.sizes.tolist()
    digests = [hashlib.sha256(records.source[at : at + n]).hexdigest() for at, n in zip(starts, sizes, strict=True)]
    return list(zip(topics, records.queue_ids.tolist(), records.queue_offsets.tolist(), digests, strict=True))


def write_store(
    directory: Path, messages: int, *, body: Callable[[int], bytes], segment: int = 1 << 20, topic: str = "T"
) -> list[int]:
    """A store of one topic with three queues; return the log offsets of its records."""
    config = StoreConfig(
        store_path_root_dir=str(directory),
        mapped_file_size_commit_log=segment,
        mapped_file_size_consume_queue=20 * 1000,
        max_hash_slot_num=100,
        max_index_num=1000,
    )
    clock = VirtualClock()
    store = MessageStore.open(config, clock=clock)
    offsets = []
    for number in range(messages):
        clock.advance(0.001)
        queue = store.queue(topic, number % 3)
        text = f"KEYS\x01k{number}\x02TAGS\x01t{number % 2}"
        offsets.append(store.batch.put(queue, NewRecord(body(number), text.encode(), 0, 0, 0, HOST, HOST, 0, 0, 0, ())))
        store.batch.commit()
    store.close_now()
    return offsets


def damage(directory: Path, log_offset: int, data: bytes, segment: int = 1 << 20) -> None:
    """Overwrite bytes of the log."""
    start = log_offset // segment * segment
    with (directory / "commitlog" / f"{start:020d}").open("r+b") as file:
        file.seek(log_offset - start)
        file.write(data)


def bad_records(path: Path) -> list[dict[str, Any]]:
    """The lines of the files of damaged records."""
    return [json.loads(line) for file in sorted(path.glob("*.json")) for line in file.read_text().splitlines()]


def make(offset: int, body: bytes = b"body", sys_flag: int = 0, properties: str = "TAGS\x01TagA") -> bytes:
    """A stored record of queue 0 of topic T."""
    return encode_record(
        topic="T",
        queue_id=0,
        queue_offset=offset,
        physical_offset=offset * 100,
        body=body,
        properties_text=properties,
        sys_flag=sys_flag,
        born_timestamp=1,
        born_host=encode_host("127.0.0.1", 1),
        store_timestamp=2,
        store_host=encode_host("127.0.0.1", 10911),
    )
