"""The layouts have RocketMQ's offsets (``MessageDecoder``, ``ConsumeQueue``, ``IndexFile``)."""

from __future__ import annotations

import numpy as np
import pytest

from cometmq.message.hosts import encode_host
from cometmq.message.layout import (
    BATCH_HEAD,
    HOSTS_V6,
    INDEX_ENTRY,
    INDEX_HEADER,
    QUEUE_UNIT,
    RECORD,
    RECORDS,
    Layout,
    record_offsets,
)
from cometmq.message.record import MIN_RECORD_BYTES, RecordError, decode_record, encode_record, parts_of
from cometmq.message.record_arrays import dtype_of, offsets_of
from cometmq.message.sysflag import BORNHOST_V6, STOREHOST_V6

V4, V6 = encode_host("10.0.0.1", 1234), encode_host("fd00::1", 1234)
HOSTS = {0: (V4, V4), BORNHOST_V6: (V6, V4), STOREHOST_V6: (V4, V6), HOSTS_V6: (V6, V6)}


def record(bits: int) -> bytes:
    born_host, store_host = HOSTS[bits]
    return encode_record(
        topic="TopicTest",
        queue_id=1,
        queue_offset=2,
        physical_offset=3,
        body=b"body",
        properties_text="a\x01b\x02",
        flag=4,
        born_timestamp=5,
        born_host=born_host,
        store_timestamp=6,
        store_host=store_host,
        reconsume_times=7,
        prepared_transaction_offset=8,
    )


def test_a_record_has_the_offsets_of_rocketmq() -> None:
    assert list(RECORD.offsets.values()) == [0, 4, 8, 12, 16, 20, 28, 36, 40, 48, 56, 64, 72, 76, 84]
    assert RECORD.size == 88
    assert MIN_RECORD_BYTES == 91
    assert record_offsets("store_timestamp") == {0: 56, BORNHOST_V6: 68, STOREHOST_V6: 56, HOSTS_V6: 68}
    assert record_offsets("body_length") == {0: 84, BORNHOST_V6: 96, STOREHOST_V6: 96, HOSTS_V6: 108}


def test_units_index_and_batches_have_the_sizes_of_rocketmq() -> None:
    assert list(QUEUE_UNIT.offsets.values()) == [0, 8, 12]
    assert list(INDEX_HEADER.offsets.values()) == [0, 8, 16, 24, 32, 36]
    assert list(INDEX_ENTRY.offsets.values()) == [0, 4, 12, 16]
    assert list(BATCH_HEAD.offsets.values()) == [0, 4, 8, 12, 16]
    assert [one.size for one in (QUEUE_UNIT, INDEX_HEADER, INDEX_ENTRY, BATCH_HEAD)] == [20, 40, 20, 20]


@pytest.mark.parametrize("bits", HOSTS)
def test_structs_arrays_and_the_decoder_read_the_same_fields(bits: int) -> None:
    layout, data = RECORDS[bits], b"before" + record(bits)
    decoded = decode_record(data, 6)
    flags = np.array([decoded.sys_flag, 0], ">i4")
    for name in layout.formats:
        if name in ("magic", "body_length"):
            continue
        value = getattr(decoded, name)
        assert layout.struct(name).unpack_from(data, 6) == (value,)
        stored = np.frombuffer(data, dtype_of(layout, name), 1, 6)[name]
        assert (stored.tobytes() if isinstance(value, bytes) else stored.tolist()) in (value, [value])
        assert offsets_of(record_offsets(name), flags).tolist() == [layout.offsets[name], RECORD.offsets[name]]
    assert layout.struct("flag", "sys_flag", "store_host").unpack_from(data, 6) == (4, bits, HOSTS[bits][1])


@pytest.mark.parametrize("bits", HOSTS)
def test_the_parts_of_a_record_are_behind_both_sizes_of_hosts(bits: int) -> None:
    data = record(bits)
    parts = parts_of(data, 0, len(data))
    assert parts is not None
    body_at, body_end, topic_at, topic_end, properties_at, properties_end = parts
    assert data[body_at:body_end] == b"body"
    assert data[topic_at:topic_end] == b"TopicTest"
    assert data[properties_at:properties_end] == b"a\x01b\x02"
    assert properties_end == len(data)
    for end in range(MIN_RECORD_BYTES, properties_at):
        assert parts_of(data, 0, end) is None
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        wrong = parts_of(damaged, 0, len(damaged))
        assert wrong is None or wrong[4] <= len(data)


def test_a_record_too_short_for_the_hosts_that_it_claims_is_none() -> None:
    data = bytearray(record(0)[:MIN_RECORD_BYTES])
    data[3] = MIN_RECORD_BYTES
    data[39] |= HOSTS_V6
    with pytest.raises(RecordError, match="does not fit"):
        decode_record(data)


def test_fields_are_read_in_the_order_of_the_layout() -> None:
    with pytest.raises(ValueError, match="first"):
        Layout({"first": "i", "second": "q"}).struct("second", "first")
