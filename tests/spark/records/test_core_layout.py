"""The compiled core finds the parts of records where Python finds them, and leaves to Python what is damaged."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import cometmq.spark.records.decode as decoding
from cometmq.core import CORE
from cometmq.message.hosts import encode_host
from cometmq.message.record import RecordError, encode_record
from cometmq.spark.records.decode import Records

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

HOSTS = encode_host("127.0.0.1", 10_911), encode_host("::1", 10_911)


def block(chance: random.Random) -> bytes:
    return b"".join(
        encode_record(
            topic=chance.choice(("T", "a-longer-topic", "x" * 127)),
            queue_id=chance.randrange(8),
            queue_offset=number,
            physical_offset=number * 1000,
            body=chance.randbytes(chance.randrange(300)),
            properties_text=chance.choice(("", "KEYS\x01k\x02", "标签\x01值")),
            born_timestamp=1_700_000_000_000,
            born_host=chance.choice(HOSTS),
            store_timestamp=1_700_000_000_001,
            store_host=chance.choice(HOSTS),
        )
        for number in range(chance.randrange(1, 40))
    )


def read(data: bytes | memoryview) -> Any:
    """All that Python or the core finds; the words of the error if it is damaged."""
    try:
        records = Records(data)
        return records.starts.tolist(), records._layout.tolist(), records.rows(slice(1, None, 2))._layout.tolist()
    except RecordError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(30))
def test_parts_are_where_python_finds_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    data = block(chance)
    cases: list[bytes | memoryview] = [data, memoryview(b"x" + data)[1:], data[:-1], data + b"\0"]
    for _ in range(20):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] = chance.randrange(256)
        cases.append(bytes(damaged))
    by_core = [read(case) for case in cases]
    monkeypatch.setattr(decoding, "CORE", None)
    assert by_core == [read(case) for case in cases]
    assert isinstance(by_core[0], tuple)
    assert isinstance(by_core[2], str)


def test_positions_that_lead_outside_are_left_to_python() -> None:
    data = block(random.Random(1))
    for position in (-1, len(data), len(data) - 3, 2**62):
        assert CORE.record_layout(data, np.array([position], np.int64)) is None
