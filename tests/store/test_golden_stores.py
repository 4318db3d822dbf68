"""Stores that real Apache RocketMQ 4.9.7 wrote are opened in place and serve what it served.

One test per store and kind of manifest line.
"""

from __future__ import annotations

import gzip
import hashlib
import ipaddress
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.unpack import unpack

from cometmq.message.compression import decompress
from cometmq.message.hosts import decode_host
from cometmq.message.record import StoredRecord, decode_record
from cometmq.options import load_options
from cometmq.store.config import StoreConfig
from cometmq.store.message_store import GetMessageStatus, MessageStore
from cometmq.store.queue.consume_queue import UNIT

NAMES = ["clean", "killed", "torn", "v6"]


class GoldenStore:
    """One extracted store, opened, with its manifest."""

    def __init__(self, source: Path, directory: Path) -> None:
        unpack(source / "store.tar.gz", directory)
        with gzip.open(source / "manifest.jsonl.gz", "rt", encoding="utf-8") as lines:
            self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.config, _ = load_options(
            StoreConfig,
            (directory / "broker.conf").read_text(),
            source="broker.conf",
            overrides={
                "store_path_root_dir": str(directory / "store"),
                "store_path_commit_log": str(directory / "store" / "commitlog"),
            },
        )
        self.store = MessageStore.open(self.config)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]


@pytest.fixture(scope="module", params=NAMES)
def opened(
    request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GoldenStore]:
    store = GoldenStore(golden / "stores" / request.param, tmp_path_factory.mktemp(request.param))
    yield store
    store.store.close_now()


def test_log_begins_and_ends_where_apache_says(opened: GoldenStore) -> None:
    [line] = opened.of_kind("log")
    assert (opened.store.min_physical_offset, opened.store.max_physical_offset) == (
        line["minOffset"],
        line["maxOffset"],
    )


def test_queue_offsets(opened: GoldenStore) -> None:
    lines = opened.of_kind("queue")
    assert lines
    for line in lines:
        queue = opened.store.queue(line["topic"], line["queueId"])
        assert (queue.min_offset(), queue.max_offset()) == (line["minOffset"], line["maxOffset"]), line


def test_consume_queue_units(opened: GoldenStore) -> None:
    for line in opened.of_kind("consumeQueue"):
        queue = opened.store.queue(line["topic"], line["queueId"])
        units = []
        at = line["from"]
        while at < queue.max_offset():
            found = list(UNIT.iter_unpack(queue.units(at, 1000)))
            units += found
            at += len(found)
        assert [list(unit) for unit in units] == line["units"], (line["topic"], line["queueId"])


def pulled(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    """All records of a queue, by pulls of 32."""
    records: list[bytes] = []
    queue = store.queue(topic, queue_id)
    offset = queue.min_offset()
    while True:
        result = store.get_message(queue, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            assert result.status in (GetMessageStatus.OFFSET_OVERFLOW_ONE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)
            return records
        body = b"".join(result.chunks)
        assert len(body) == result.size
        at = 0
        for _ in range(result.count):
            size = int.from_bytes(body[at : at + 4], "big")
            records.append(body[at : at + size])
            at += size
        assert at == len(body)
        offset = result.next_begin_offset


def java_host(host: bytes) -> str:
    """An address as Java writes it: IPv6 groups in full, without leading zeros."""
    ip, port = decode_host(host)
    if ":" in ip:
        ip = ":".join(f"{int(group, 16):x}" for group in ipaddress.ip_address(ip).exploded.split(":"))
    return f"{ip} {port}"


def as_manifest(raw: bytes, record: StoredRecord) -> dict[str, Any]:
    body = decompress(record.body, record.sys_flag, 1 << 24)
    return {
        "kind": "message",
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "commitLogOffset": record.physical_offset,
        "storeSize": record.size,
        "msgId": record.msg_id,
        "uniqKey": record.properties.get("UNIQ_KEY"),
        "tags": record.properties.get("TAGS"),
        "keys": record.properties.get("KEYS"),
        "properties": record.properties,
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bornTimestamp": record.born_timestamp,
        "storeTimestamp": record.store_timestamp,
        "bornHost": java_host(record.born_host),
        "storeHost": java_host(record.store_host),
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "recordSha256": hashlib.sha256(raw).hexdigest(),
    }


def test_every_message_of_every_queue(opened: GoldenStore) -> None:
    expected: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for line in opened.of_kind("message"):
        expected.setdefault((line["topic"], line["queueId"]), []).append(line)
    assert expected
    for (topic, queue_id), lines in expected.items():
        raws = pulled(opened.store, topic, queue_id)
        assert len(raws) == len(lines), (topic, queue_id)
        for raw, line in zip(raws, lines, strict=True):
            assert as_manifest(raw, decode_record(raw)) == line
            assert opened.store.record_at(line["commitLogOffset"], line["storeSize"]) == raw


def test_offsets_by_time(opened: GoldenStore) -> None:
    for line in opened.of_kind("searchOffset"):
        assert opened.store.offset_by_time(line["topic"], line["queueId"], line["timestamp"]) == line["offset"], line


def test_queries_by_key(opened: GoldenStore) -> None:
    lines = opened.of_kind("query")
    assert lines
    for line in lines:
        result = opened.store.query(line["topic"], line["key"], 32 if line["unique"] else 64, 0, 1 << 62)
        found = [decode_record(view).physical_offset for view in result.records]
        assert found == line["commitLogOffsets"], line
        assert str(result.last_update_timestamp) == line["extFields"]["indexLastUpdateTimestamp"]
        assert str(result.last_update_physical_offset) == line["extFields"]["indexLastUpdatePhyoffset"]


def test_opening_says_what_it_found(opened: GoldenStore) -> None:
    assert all("\n" not in finding for finding in opened.store.findings)
    crashed = any(finding.startswith("abort: ") for finding in opened.store.findings)
    assert crashed == (opened.config.root.parent.name.rstrip("0123456789") in ("killed", "torn"))
