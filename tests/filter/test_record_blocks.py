"""Selectors over many records at once give the answers that they give record by record."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filter import questions
from tests.filter.test_records import V4, V6, as_v2, record

from cometmq.filter import FilterError, parse_selector
from cometmq.filter.block_evaluation import block_predicate
from cometmq.filter.record_block import RecordBlock
from cometmq.message.properties import encode_properties
from cometmq.message.record import PHYSICAL_OFFSET_AT

BASE = 5_000_000
TOPIC = "T"


class Log:
    """Records one behind the other in a file, each saying that it stands where it does."""

    def __init__(self, records: Sequence[bytes], room: int = 4_096) -> None:
        data = bytearray(b"\x02a\x011\x02" * 5)
        at, sizes = [], []
        for one in records:
            at.append(len(data))
            sizes.append(len(one))
            data += one
            struct.pack_into(">q", data, at[-1] + PHYSICAL_OFFSET_AT, BASE + at[-1])
        self.view = memoryview(bytes(data) + bytes(room))
        self.at = np.array(at, np.int64)
        self.sizes = np.array(sizes, np.int64)

    def one_by_one(self, text: str) -> list[bool]:
        matches = parse_selector(text).matches_record
        places = zip(self.at.tolist(), self.sizes.tolist(), strict=True)
        return [matches(self.view[at : at + size]) for at, size in places]

    def together(self, text: str) -> list[bool]:
        found = parse_selector(text).matches_block(self.view, BASE, self.at, self.sizes, len(TOPIC))
        return [bool(one) for one in found]

    def asked_one_by_one(self, text: str) -> int:
        """How many records are not decided by array operations."""
        asked = []

        def matches(one: memoryview) -> bool:
            asked.append(one)
            return False

        block_predicate(parse_selector(text).expression, matches)(self.view, BASE, self.at, self.sizes, len(TOPIC))
        return len(asked)


def stored(chance: random.Random) -> bytes:
    """A record with properties by chance; some of other layouts or with strange properties."""
    pairs = list(questions.properties(chance).items())
    chance.shuffle(pairs)
    if chance.random() < 0.1:
        pairs += [(name, chance.choice(questions.VALUES)) for name, _ in pairs[:2]]
    if chance.random() < 0.05:
        pairs.append(("pad", "p" * chance.choice((200, 3_000, 5_000))))
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs) + chance.choice(("", "\x02"))
    if chance.random() < 0.03:
        text = chance.choice(("", "\x02\x02", "a", "a\x01", "\x01", "a\x01x\x01y\x02b"))
    body = chance.randbytes(chance.randrange(40)) + chance.choice((b"", b"\x02a\x015\x02b\x01x\x02"))
    one = record(text, body=body, born=chance.choice((V6, *[bytes(8)] * 20)))
    if chance.random() < 0.05:
        one = as_v2(one, TOPIC)
    return one


@pytest.mark.parametrize("seed", range(12))
def test_selectors_by_chance(seed: int) -> None:
    chance = random.Random(seed)
    log = Log([stored(chance) for _ in range(120)], room=chance.choice((0, 10, 500)))
    asked = 0
    while asked < 150:
        text = questions.expression(chance)
        try:
            parse_selector(text)
        except FilterError:
            continue
        asked += 1
        assert log.together(text) == log.one_by_one(text), text


@given(st.lists(st.tuples(st.text(max_size=12), st.text("0123456789.-+e x", max_size=20)), min_size=30, max_size=40))
def test_any_text_and_number(values: list[tuple[str, str]]) -> None:
    log = Log([record(f"s\x01{text}\x02n\x01{number}") for text, number in values])
    text = values[0][0].replace("'", "''")
    for expression in (
        f"s = '{text}' AND n > 3",
        f"n <= 5.5 OR s <> '{text}'",
        "n BETWEEN -10 AND 3000000000",
        f"n = 7 OR s IN ('{text}', 'x') AND n IS NOT NULL",
        "n < 9.25",
    ):
        assert log.together(expression) == log.one_by_one(expression), expression


def test_hosts_of_both_kinds() -> None:
    hosts = [(born, stored) for born in (V4, V6) for stored in (V4, V6)]
    log = Log([record(f"a\x01{number}", born=born, stored=at) for number in range(25) for born, at in hosts])
    assert log.together("a >= 12") == log.one_by_one("a >= 12") == [False] * 48 + [True] * 52
    assert log.asked_one_by_one("a >= 12") == 0


def test_bytes_that_are_no_utf8() -> None:
    texts = [f"a\x01{number}\x02b\x01ü" for number in range(40)]
    log = Log([record(text).replace("ü".encode(), b"\xfc\xfc") for text in texts])
    for expression in ("b = '\ufffd\ufffd'", "b <> 'x'", "b IN ('\ufffd\ufffd', 'y')", "b IN ('ü')", "b = 'ü'"):
        assert log.together(expression) == log.one_by_one(expression), expression
    assert all(log.together("b = '\ufffd\ufffd'"))


def test_names_longer_than_a_machine_word_and_names_that_begin_alike() -> None:
    log = Log([record(f"orderAmountX\x011\x02orderAmount\x01{number}\x02order\x012\x02") for number in range(50)])
    for expression in ("orderAmount >= 25", "order = 2 AND orderAmountX = 1", "orderAmountXY IS NULL", "o IS NOT NULL"):
        assert log.together(expression) == log.one_by_one(expression)
        assert log.asked_one_by_one(expression) == 0


@pytest.mark.parametrize(
    "expression",
    [
        "region = 'eu' AND amount > 100 AND kind IN ('buy', 'sell')",
        "amount >= 900 AND amount < 2000.5 AND region <> 'us'",
        "price BETWEEN 1.5 AND 7.25 OR region = 'eu'",
        "missing IS NULL AND NOT (amount > 3) AND 5.5 < price",
        "amount > 3000000000 OR missing > 5 OR TRUE",
        "price NOT BETWEEN -1.5 AND 7.25 AND region IS NOT NULL",
        "region AND amount = 3",
        f"amount IN ({', '.join(repr(str(each)) for each in range(0, 2_000, 7))}, '') AND missing NOT IN ('x')",
        f"amount NOT IN ({', '.join(repr(str(each)) for each in range(0, 2_000, 7))})",
        "kind IN ('buy', 'a value of more than eight bytes', 'sell') AND region NOT IN ('asia', 'somewhere else')",
    ],
)
def test_common_selectors_need_no_record_on_its_own(expression: str) -> None:
    chance = random.Random(5)
    log = Log(
        [
            record(
                f"region\x01{chance.choice(('eu', 'us', 'asia'))}\x02amount\x01{chance.randrange(-50, 2_500)}"
                f"\x02kind\x01{chance.choice(('buy', 'sell', 'none', 'a value of more than eight bytes'))}"
                f"\x02price\x01{chance.randrange(10_000) / 1000}"
            )
            for _ in range(300)
        ]
    )
    assert log.together(expression) == log.one_by_one(expression)
    assert log.asked_one_by_one(expression) == 0


def test_what_is_no_record_is_no_match() -> None:
    log = Log([record(f"a\x01{number}") for number in range(60)])
    data = bytearray(log.view)
    chance = random.Random(3)
    for number in range(0, 60, 3):
        at, size = int(log.at[number]), int(log.sizes[number])
        for _ in range(chance.randrange(1, 4)):
            data[at + chance.randrange(size)] = chance.randrange(256)
    log.view = memoryview(bytes(data))
    for expression in ("a >= 0", "a IS NULL", "a = '5'"):
        assert log.together(expression) == log.one_by_one(expression)


def test_a_few_wide_rows_do_not_widen_all() -> None:
    records = [record("a\x011\x02pad\x01" + "p" * (20_000 if number == 7 else 10)) for number in range(100)]
    log = Log(records)
    block = RecordBlock(log.view, BASE, log.at, log.sizes, len(TOPIC))
    assert block.rows == 99
    assert len(block.data) < 200 * 100
    assert all(log.together("a = 1"))


MANY_TERMS = {
    "texts": " OR ".join(f"p{number} = 'x'" for number in range(120)),
    "numbers": " OR ".join(f"p{number} > 1" for number in range(120)),
    "lists": " OR ".join(f"p{number} IN ({', '.join(repr(str(one)) for one in range(20))})" for number in range(60)),
    "two properties": " OR ".join(f"p{number} = q{number}" for number in range(60)) + " OR p1 = 'x'",
    "nulls": " AND ".join(f"a{number} IS NOT NULL" for number in range(120)),
}
MANY_PROPERTIES = {
    "4 KB": {f"a{number}": "b" for number in range(600)},
    "32 KB": {f"a{number}": "b" * 20 for number in range(1_200)},
    "one of 32 KB": {"p1": "1" * 32_000},
}


@pytest.mark.parametrize("terms", MANY_TERMS)
@pytest.mark.parametrize("properties", MANY_PROPERTIES)
def test_what_is_much_work_is_told_in_parts(terms: str, properties: str) -> None:
    text = MANY_TERMS[terms]
    log = Log([record(encode_properties(MANY_PROPERTIES[properties])) for _ in range(100)])
    expected = log.one_by_one(text)
    matches_block = parse_selector(text).matches_block
    told: list[bool] = []
    parts = 0
    while len(told) < 100:
        at = len(told)
        found = matches_block(log.view, BASE, log.at[at:], log.sizes[at:], len(TOPIC))
        assert len(found)
        told += found.tolist()
        parts += 1
    assert told == expected
    assert parts > 4
