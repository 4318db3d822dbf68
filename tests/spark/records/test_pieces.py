"""Pieces that are overwritten after they were decoded give the same rows as all records at once in Python."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow as pa
from tests.spark.records.test_one_pass import ALL, IPV6_HOST, SCHEMAS, block, record, without_core

import cometmq.spark.records.pieces as pieces_module
from cometmq.core import CORE
from cometmq.message.record import RecordError
from cometmq.spark.records.columns import ARCHIVE_COLUMNS, arrow_schema
from cometmq.spark.records.decode import Records, decode
from cometmq.spark.records.pieces import decode_pieces

AT = re.compile(r"byte \d+|the \d+ bytes")
"""Positions in messages: those in the kept records, or in all."""
RARE: tuple[dict[str, Any], ...] = (
    {"topic": "Other"},
    {"is_compressed": True},
    {"born_host": IPV6_HOST},
    {"properties_text": "".join(f"{n}\x01v\x02" for n in range(100))},
)


def overwritten(pieces: list[bytes]) -> Iterator[memoryview]:
    """Each piece in the same buffer, which has other bytes once the next one is requested."""
    buffer = bytearray(max(map(len, pieces), default=0))
    for piece in pieces:
        buffer[: len(piece)] = piece
        yield memoryview(buffer)[: len(piece)]
        buffer[:] = b"\xa5" * len(buffer)


def read(pieces: list[bytes], schema: Any, **options: Any) -> list[Any]:
    return list(decode_pieces(overwritten(pieces), schema, broker_name="b", on_bad_body=lambda *_: None, **options))


def by_python(pieces: list[bytes], schema: Any, tags: frozenset[str] = frozenset()) -> Any:
    """All records at once, without the core."""
    with without_core():
        records = Records(b"".join(pieces))
        chosen = records.tagged(tags) if tags else records
        batches = list(decode(chosen, schema, broker_name="b", on_bad_body=lambda *_: None))
    return pa.Table.from_batches(batches, schema)


def check(pieces: list[bytes], schema: Any, **options: Any) -> list[Any]:
    """Compare the rows with Python's, and return the batches."""
    batches = read(pieces, schema, **options)
    for batch in batches:
        batch.validate(full=True)
    assert pa.Table.from_batches(batches, schema) == by_python(pieces, schema, **options)
    return batches


def cut(chance: random.Random, records: list[bytes]) -> list[bytes]:
    """Cut records into pieces, of which some are empty."""
    ends = sorted(chance.choices(range(len(records) + 1), k=chance.randrange(6)))
    begins = [0, *ends]
    return [b"".join(records[begin:end]) for begin, end in zip(begins, [*ends, len(records)], strict=True)]


@pytest.mark.parametrize("schema", [*SCHEMAS, arrow_schema(ARCHIVE_COLUMNS)], ids=range(len(SCHEMAS) + 1))
@pytest.mark.parametrize("batch_bytes", [1, 700, 3_000, 1 << 20])
def test_pieces_give_the_rows_of_all_records(schema: Any, batch_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "BATCH_BYTES", batch_bytes)
    for seed in range(12):
        chance = random.Random(seed)
        records = block(chance)
        for _ in range(chance.choice((0, 0, 1, 3))):
            records.insert(chance.randrange(len(records) + 1), record(chance, 100, **chance.choice(RARE)))
        check(cut(chance, records), schema)


def test_nothing_gives_no_batch() -> None:
    assert read([], ALL) == read([b"", b""], ALL) == []


def test_tags_choose_records() -> None:
    chance = random.Random(3)
    records = [record(chance, number, properties_text=f"TAGS\x01{number % 3}") for number in range(30)]
    batches = check(cut(chance, records), SCHEMAS[1], tags=frozenset({"0", "2"}))
    assert sum(batch.num_rows for batch in batches) == 20


@pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")
def test_plain_and_rare_records_are_in_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends with the first rare record, and the next one only when it is full."""
    monkeypatch.setattr(pieces_module, "BATCH_BYTES", 20_000)
    chance = random.Random(4)
    plain, packed = ([record(chance, n, is_compressed=kind) for n in range(1_000)] for kind in (False, True))
    for kind in (plain, packed):
        batches = check([b"".join(kind[n : n + 10]) for n in range(0, 1_000, 10)], SCHEMAS[1])
        assert len(batches) <= 2 + sum(map(len, kind)) // 20_000
    mixed = [one for pair in zip(plain, packed, strict=True) for one in pair]
    batches = check([b"".join(mixed[n : n + 10]) for n in range(0, 2_000, 10)], SCHEMAS[1])
    assert len(batches) <= 2 + 2 * sum(map(len, mixed)) // 20_000


@pytest.mark.parametrize("seed", range(6))
def test_damaged_pieces_give_the_rows_before_the_damage_and_an_error(seed: int) -> None:
    """The core refuses what Python refuses, and changes no row before it."""
    chance = random.Random(seed)
    records = block(chance)[:8]
    pieces = cut(chance, records)
    whole = by_python(pieces, ALL)
    refused = 0
    for _ in range(150):
        number = chance.choice([at for at, piece in enumerate(pieces) if piece])
        damaged = bytearray(pieces[number])
        damaged[chance.randrange(len(damaged))] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        changed = [*pieces[:number], bytes(damaged), *pieces[number + 1 :]]
        for schema in (ALL, SCHEMAS[1]):
            expected: Any
            try:
                expected = by_python(changed, schema)
            except RecordError as error:
                expected = AT.sub("byte", str(error))
            if not isinstance(expected, str):
                assert pa.Table.from_batches(read(changed, schema), schema) == expected
                continue
            refused += 1
            found: list[Any] = []
            with pytest.raises(RecordError) as raised:
                found.extend(decode_pieces(overwritten(changed), schema, on_bad_body=lambda *_: None))
            assert AT.sub("byte", str(raised.value)) == expected
            offsets = [offset for batch in found for offset in batch.column("queueOffset").to_pylist()]
            assert offsets == whole.column("queueOffset").to_pylist()[: len(offsets)]
    assert refused
