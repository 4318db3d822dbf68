"""The vectorised decoder gives what the plain one gives, for every column, and refuses the same bytes."""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.spark.store_files import make

pa = pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")

from cometmq.core import CORE  # noqa: E402
from cometmq.message.compression import compress  # noqa: E402
from cometmq.message.hosts import decode_host, encode_host, format_address  # noqa: E402
from cometmq.message.record import RecordError, decode_record, encode_record, iter_records  # noqa: E402
from cometmq.message.sysflag import COMPRESSED, CompressionType, with_compression  # noqa: E402
from cometmq.spark.errors import BadBodyError  # noqa: E402
from cometmq.spark.records.columns import COLUMNS, arrow_schema  # noqa: E402
from cometmq.spark.records.decode import Records, decode, record_starts  # noqa: E402

ALL = arrow_schema(column.name for column in COLUMNS)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

HOSTS = st.one_of(
    st.tuples(st.ip_addresses(v=4).map(str), st.integers(0, 65535)),
    st.tuples(st.ip_addresses(v=6, network="2001:db8::/32").map(str), st.integers(0, 65535)),
).map(lambda address: encode_host(*address))
NAMES = st.sampled_from(
    [
        "TAGS",
        "KEYS",
        "UNIQ_KEY",
        "DELAY",
        "TIMER_DELIVER_MS",
        "PGROUP",
        "a",
        "",
        "kéy",
        "TAGZ",
        "a-rather-long-name-of-a-property",
    ]
)
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\x02", codec="utf-8"), max_size=20),
    st.integers(-(10**10), 10**16).map(str),
)
TEXTS = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=6).map(lambda ps: "\x02".join(f"{n}\x01{v}" for n, v in ps)),
    st.lists(st.tuples(NAMES, VALUES), max_size=6).map(lambda ps: "".join(f"{n}\x01{v}\x02" for n, v in ps)),
    st.text("ab\x01\x02", max_size=12),
)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
MILLISECONDS = st.integers(0, 4_000_000_000_000)
PACKED = st.sampled_from([None, None, None, *CompressionType])


@st.composite
def stored(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    kind = draw(PACKED)
    flag = draw(st.sampled_from([0, 0x2, 0x8, 0x40]))
    if kind is not None:
        body, flag = compress(body, kind), with_compression(flag, kind)
    return encode_record(
        topic=draw(st.sampled_from(["T", "TopicTest", "%RETRY%a-group-with-a-name", "x" * 127])),
        queue_id=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(st.integers(0, 2**63 - 1)),
        body=body,
        properties_text=draw(TEXTS),
        flag=draw(INT32),
        sys_flag=flag,
        born_timestamp=draw(MILLISECONDS),
        born_host=draw(HOSTS),
        store_timestamp=draw(MILLISECONDS),
        store_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
    )


def plain(record: bytes) -> dict[str, Any]:
    """One record by the plain decoder, in the shape of a row."""
    from cometmq.message.compression import decompress

    r = decode_record(record)
    properties = r.properties
    due = number_in(properties.get("TIMER_DELIVER_MS"), 14)
    expires = number_in(properties.get("COMETMQ_EXPIRES_MS"), 14)
    priority = number_in(properties.get("_SYS_MSG_PRIORITY_"), 14)
    return {
        "topic": r.topic,
        "brokerName": "broker-a",
        "queueId": r.queue_id,
        "queueOffset": r.queue_offset,
        "msgId": r.msg_id,
        "uniqKey": properties.get("UNIQ_KEY"),
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "body": decompress(r.body, r.sys_flag),
        "properties": properties,
        "flag": r.flag,
        "sysFlag": r.sys_flag,
        "bornTimestamp": EPOCH + datetime.timedelta(milliseconds=r.born_timestamp),
        "bornHost": format_address(*decode_host(r.born_host)),
        "storeTimestamp": EPOCH + datetime.timedelta(milliseconds=r.store_timestamp),
        "storeHost": format_address(*decode_host(r.store_host)),
        "reconsumeTimes": r.reconsume_times,
        "preparedTransactionOffset": r.prepared_transaction_offset,
        "physicalOffset": r.physical_offset,
        "storeSize": r.size,
        "bodyCrc": r.body_crc,
        "storedBody": r.body if r.sys_flag & COMPRESSED else None,
        "propertiesText": r.properties_text,
        "delayLevel": number_in(properties.get("DELAY"), 9),
        "deliverTimestamp": None if due is None else EPOCH + datetime.timedelta(milliseconds=due),
        "priority": priority if priority is not None and 0 <= priority < 2**31 else None,
        "expireTimestamp": None if expires is None else EPOCH + datetime.timedelta(milliseconds=expires),
        "transactionType": {0: None, 4: "PREPARED", 8: "COMMIT", 12: "ROLLBACK"}[r.sys_flag & 12],
        "producerGroup": properties.get("PGROUP"),
    }


def number_in(text: str | None, digits: int) -> int | None:
    return int(text) if text is not None and re.fullmatch(rf"-?[0-9]{{1,{digits}}}", text) else None


def rows_of(batches: Any) -> list[dict[str, Any]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    for row in rows:
        if "properties" in row:
            assert len(row["properties"]) == len(dict(row["properties"])), "a name stands twice in a map"
            row["properties"] = dict(row["properties"])
    return rows


@settings(deadline=None, max_examples=150)
@given(st.lists(stored(), max_size=12))
def test_every_column_equals_the_plain_decoder(records: list[bytes]) -> None:
    batches = list(decode(Records(b"".join(records)), ALL, broker_name="broker-a"))
    assert all(batch.schema.equals(ALL) for batch in batches)
    assert rows_of(batches) == [plain(record) for record in records]


@settings(deadline=None, max_examples=100)
@given(st.lists(NAMES, max_size=5), st.data())
def test_records_that_share_their_names_equal_the_plain_decoder(names: list[str], data: st.DataObject) -> None:
    values = st.lists(VALUES, min_size=len(names), max_size=len(names))
    texts = [
        "\x02".join(f"{name}\x01{value}" for name, value in zip(names, drawn, strict=True))
        for drawn in data.draw(st.lists(values, min_size=2, max_size=8))
    ]
    records = [make(i, properties=text) for i, text in enumerate(texts)]
    kinds = arrow_schema(["properties", "tags", "keys", "uniqKey", "propertiesText"])
    expected = [{name: plain(record)[name] for name in kinds.names} for record in records]
    assert rows_of(decode(Records(b"".join(records)), kinds)) == expected


@settings(deadline=None, max_examples=60)
@given(st.lists(stored(), min_size=1, max_size=8), st.data())
def test_chosen_records_are_those_of_the_whole(records: list[bytes], data: st.DataObject) -> None:
    """Whatever was looked at before, and however they are chosen."""
    every = Records(b"".join(records))
    for look in data.draw(st.sets(st.sampled_from(["topic_codes", "queue_offsets", "properties"]))):
        getattr(every, look)
    wanted = data.draw(st.lists(st.integers(0, len(records) - 1), unique=True))
    if data.draw(st.booleans()):
        wanted.sort()
        mask = np.zeros(len(records), np.bool_)
        mask[wanted] = True
        chosen = every.rows(mask)
    else:
        chosen = every.rows(np.array(wanted, np.int64))
    assert rows_of(decode(chosen, ALL, broker_name="broker-a")) == [plain(records[row]) for row in wanted]


@settings(deadline=None, max_examples=40)
@given(st.lists(stored(), min_size=1, max_size=12))
def test_queues_are_told_apart_and_keep_their_order(records: list[bytes]) -> None:
    expected: dict[tuple[str, int], list[int]] = {}
    for record in map(decode_record, records):
        expected.setdefault((record.topic, record.queue_id), []).append(record.queue_offset)
    found = Records(b"".join(records)).by_queue()
    assert {(topic, queue_id): part.queue_offsets.tolist() for topic, queue_id, part in found} == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(stored(), min_size=1, max_size=6), st.sets(st.sampled_from([c.name for c in COLUMNS]), min_size=1))
def test_a_projection_is_a_part_of_the_whole(records: list[bytes], names: set[str]) -> None:
    schema = arrow_schema(sorted(names))
    expected = [{name: plain(record)[name] for name in sorted(names)} for record in records]
    assert rows_of(decode(Records(b"".join(records)), schema, broker_name="broker-a")) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(stored(), min_size=1, max_size=4), st.data())
def test_damage_is_refused_or_harmless(records: list[bytes], data: st.DataObject) -> None:
    """Whatever one byte is changed to: an error of ours, or rows; never another exception, never a crash."""
    damaged = bytearray(b"".join(records))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        list(iter_records(bytes(damaged)))
        whole = True
    except RecordError as error:
        whole = "UTF-8" in str(error)
    try:
        list(decode(Records(bytes(damaged)), ALL, broker_name="b", on_bad_body=lambda *_: None))
    except RecordError:
        assert not whole


@pytest.mark.parametrize("cut", [1, 3, 50, 90])
def test_a_cut_record_is_refused(cut: int) -> None:
    record = make(0)
    with pytest.raises(RecordError):
        record_starts(record + record[:cut])


def test_a_bad_body_fails_or_is_null_and_is_kept_as_stored() -> None:
    records = Records(make(0) + make(1, b"not zlib", 1) + make(2, zlib.compress(b"fine"), 1))
    with pytest.raises(BadBodyError, match=r"at offset 1 of .*badBodies"):
        list(decode(records, ALL))
    rows = rows_of(decode(records, ALL, on_bad_body=lambda *_: None))
    assert [row["body"] for row in rows] == [b"body", None, b"fine"]
    assert rows[1]["storedBody"] == b"not zlib"


def test_a_bad_body_does_no_harm_where_no_body_is_asked_for() -> None:
    records = Records(make(1, b"not zlib", 1))
    assert rows_of(decode(records, arrow_schema(["queueOffset"]))) == [{"queueOffset": 1}]


def test_large_unpacked_bodies_are_spread_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.spark.records.decode.MAX_SPARK_BATCH_BODY_BYTES", 1000)
    bodies = [bytes([i]) * 400 for i in range(10)]
    records = Records(b"".join(make(i, zlib.compress(body), 1) for i, body in enumerate(bodies)))
    batches = list(decode(records, arrow_schema(["queueOffset", "body"])))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 2, 2]
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == bodies


def test_a_bomb_is_a_bad_body() -> None:
    records = Records(make(0, zlib.compress(bytes(5000)), 1))
    with pytest.raises(BadBodyError, match="larger than 1000"):
        list(decode(records, arrow_schema(["body"]), max_body_bytes=1000))


def test_bytes_that_are_not_text_become_the_replacement_character() -> None:
    record = make(0).replace(b"TagA", b"\xff\xfegA")
    assert rows_of(decode(Records(record), arrow_schema(["tags"]))) == [{"tags": "��gA"}]


def test_records_are_chosen_by_queue_offset() -> None:
    records = Records(b"".join(make(i) for i in range(10)))
    assert records.between(3, 6).queue_offsets.tolist() == [3, 4, 5]
    assert len(records.between(20, 30)) == 0


@pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")
def test_a_workers_first_batch_does_not_import_pandas() -> None:
    pytest.importorskip("pandas")
    code = f"""
import sys
from cometmq.spark.records.columns import COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
batch, = decode(Records({make(0)!r}), arrow_schema(c.name for c in COLUMNS if c.default), broker_name="b")
assert batch.num_rows == 1
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
