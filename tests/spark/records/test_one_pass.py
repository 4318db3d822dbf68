"""The compiled core decodes all columns in one pass, equal to Python's; what is damaged or rare it leaves to Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow as pa

import cometmq.spark.records.decode as decoding
import cometmq.spark.records.one_pass as one_pass
import cometmq.spark.records.property_columns as property_columns
from cometmq.core import CORE
from cometmq.message.compression import compress
from cometmq.message.hosts import encode_host
from cometmq.message.layout import RECORD
from cometmq.message.record import RecordError, encode_record
from cometmq.message.sysflag import CompressionType, with_compression
from cometmq.spark.records.columns import COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

ALL = arrow_schema(column.name for column in COLUMNS)
SCHEMAS = (
    ALL,
    arrow_schema(column.name for column in COLUMNS if column.default),
    arrow_schema(["body"]),
    arrow_schema(["propertiesText", "sysFlag"]),
    arrow_schema(["queueOffset", "tags", "producerGroup"]),
    arrow_schema(["queueId", "bornHost", "storeTimestamp"]),
)
HOST = encode_host("10.1.2.3", 10_911)
OTHER_HOSTS = (HOST, encode_host("192.168.0.255", 65_535))
IPV6_HOST = encode_host("::1", 10_911)
PIECES = (
    "TAGS\x01a",
    "KEYS\x01k1 k2",
    "UNIQ_KEY\x01id",
    "TAGS\x01later",
    "标签\x01值",
    "x\x01a\x01b",
    "\x01v",
    "n\x01",
    "",
    "x",
)
INT64 = 1 << 63


def record(chance: random.Random, number: int, **fields: Any) -> bytes:
    body, sys_flag = chance.randbytes(chance.randrange(300)), chance.choice((0, 2, 8))
    if fields.pop("is_compressed", False):
        body, sys_flag = compress(body, CompressionType.ZLIB), with_compression(sys_flag, CompressionType.ZLIB)
    pieces = chance.choices(PIECES, k=chance.randrange(6))
    drawn: dict[str, Any] = {
        "topic": "TopicTest",
        "queue_id": chance.choice((0, 7, -1, 2**31 - 1)),
        "queue_offset": number,
        "physical_offset": chance.randrange(INT64),
        "properties_text": "\x02".join(pieces) + chance.choice(("", "\x02")),
        "flag": chance.randrange(-(1 << 31), 1 << 31),
        "born_timestamp": chance.choice((1_700_000_000_000, 0, -1, INT64 - 1, -INT64)),
        "born_host": chance.choice(OTHER_HOSTS),
        "store_timestamp": 1_700_000_000_000 + number,
        "store_host": HOST,
        "reconsume_times": chance.randrange(20),
        "prepared_transaction_offset": chance.choice((0, -1, INT64 - 1)),
    }
    return encode_record(body=body, sys_flag=sys_flag, **(drawn | fields))


def block(chance: random.Random, **fields: Any) -> list[bytes]:
    return [record(chance, number, **fields) for number in range(chance.randrange(1, 40))]


@contextmanager
def without_core() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoding, one_pass, property_columns):
            patch.setattr(module, "CORE", None)
        yield


def tables(data: bytes | memoryview, which: Any, schemas: Sequence[Any]) -> Any:
    """All that is decoded from chosen records, or the words of the error."""
    found = []
    try:
        for schema in schemas:
            records = Records(data) if which is None else Records(data).rows(which)
            batches = decode(records, schema, broker_name="b", on_bad_body=lambda *_: None)
            found.append(pa.Table.from_batches(list(batches), schema))
    except RecordError as error:
        return str(error)
    return found


def compare(data: bytes | memoryview, which: Any = None, schemas: Sequence[Any] = SCHEMAS) -> Any:
    """Check that the core and Python find the same, and return it."""
    by_core = tables(data, which, schemas)
    with without_core():
        by_python = tables(data, which, schemas)
    if isinstance(by_core, str):
        assert by_core == by_python
        return by_core
    for table, expected in zip(by_core, by_python, strict=True):
        table.validate(full=True)
        assert table.schema == expected.schema
        assert [name for name in table.schema.names if table.column(name) != expected.column(name)] == []
    return by_core


def in_one_pass(data: bytes, starts: Any) -> set[str]:
    """The columns that the core decodes."""
    return set(one_pass.columns_in_one_pass(data, starts, ALL, lambda: len(data)))


@pytest.mark.parametrize("seed", range(15))
def test_plain_records(seed: int) -> None:
    chance = random.Random(seed)
    records = block(chance)
    rest = {"brokerName", "storedBody", "delayLevel", "deliverTimestamp", "priority", "expireTimestamp"}
    data = b"".join(records)
    assert in_one_pass(data, Records(data).starts) >= set(ALL.names) - rest - {"transactionType"}
    rows = np.array(chance.sample(range(len(records)), chance.randrange(1, len(records) + 1)), np.int64)
    assert compare(data)[0].num_rows == len(records)
    for which in (slice(1, None, 2), rows):
        assert compare(data, which)[0].num_rows == len(np.arange(len(records))[which])
    assert compare(memoryview(b"x" + data + b"y")[1:-1])[0].num_rows == len(records)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "rare",
    [{"topic": "Other"}, {"is_compressed": True}, {"born_host": IPV6_HOST}, {"store_host": IPV6_HOST}]
    + [{"properties_text": text} for text in ("".join(f"{n}\x01v\x02" for n in range(100)), "x" * 32_767)],
    ids=["topic", "compressed", "IPv6", "IPv6 store", "many properties", "long"],
)
def test_rare_records_among_plain_ones(seed: int, rare: dict[str, Any]) -> None:
    chance = random.Random(seed)
    records = block(chance)
    records.insert(chance.randrange(len(records) + 1), record(chance, 100, **rare))
    assert compare(b"".join(records))[0].num_rows == len(records)


def test_properties_that_are_not_text() -> None:
    records = [record(random.Random(1), 0, properties_text="TAGS\x01\ufffd\x02KEYS\x01k")] * 2
    data = b"".join(records).replace("\ufffd".encode(), b"\xff\xfe\xfd", 1)
    assert in_one_pass(data, Records(data).starts) == set()
    assert compare(data)[1].column("tags").to_pylist() == ["\ufffd\ufffd\ufffd", "\ufffd"]


@pytest.mark.parametrize("seed", range(6))
def test_damaged_records(seed: int) -> None:
    """Any byte, and each byte of each length: sizes, counts and separators may become anything."""
    chance = random.Random(seed)
    records = block(chance)[:6]
    data = b"".join(records)
    starts = Records(data).starts
    sizes = [len(one) for one in records]
    at = sum(sizes[: (hit := chance.randrange(len(records)))])
    body = int.from_bytes(data[at + RECORD.size - 4 : at + RECORD.size], "big")
    topic_at = at + RECORD.size + body
    lengths = [*range(at, at + 8), *range(at + RECORD.size - 4, at + RECORD.size), topic_at]
    lengths += [*range(topic_at + 1 + len("TopicTest"), topic_at + 3 + len("TopicTest")), at + sizes[hit] - 1]
    refused = 0
    for place in [*lengths, *(chance.randrange(len(data)) for _ in range(12))]:
        for value in {0, 1, 2, 0x7F, 0x80, 0xFF, data[place] ^ 1}:
            damaged = bytearray(data)
            damaged[place] = value
            if isinstance(compare(bytes(damaged), None, (ALL,)), str):
                refused += 1
                assert in_one_pass(bytes(damaged), starts) == set()
    assert refused > len(lengths)
    for cut in (data[:-1], data + b"\0"):
        assert isinstance(compare(cut), str)


def test_positions_and_rooms_that_do_not_fit_are_left_to_python() -> None:
    data = b"".join(block(random.Random(1)))
    starts = Records(data).starts
    wanted = True, True, ["TAGS"], False
    room = np.empty(len(data), np.uint8)
    assert CORE.RecordColumns(wanted).take_at(data, starts, room)
    for position in (-1, 1, len(data), len(data) - 3, 2**62, -(2**63)):
        assert not CORE.RecordColumns(wanted).take_at(data, np.array([position], np.int64), room)
        assert in_one_pass(data, np.array([position], np.int64)) == set()
    for bad in (room[:1], bytes(len(data)), room[::2]):
        assert not CORE.RecordColumns(wanted).take_at(data, starts, bad)
        assert CORE.RecordColumns(wanted).take(data, bad) < len(data)
    assert CORE.RecordColumns(wanted).take(data, room) == len(data)
    assert CORE.RecordColumns(wanted).take(np.frombuffer(data, np.uint8)[::2], room) == 0
