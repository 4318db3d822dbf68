"""Selectors over many records at once give the answers that they give record by record."""

from __future__ import annotations

import gc
import random
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filter import questions
from tests.filter.stored_records import V4, V6, as_v2, record

from cometmq.broker.limits import MAX_FILTER_WORK
from cometmq.filter import FilterError, parse_selector
from cometmq.filter.block_evaluation import block_predicate
from cometmq.filter.record_block import RecordBlock
from cometmq.message.layout import RECORD
from cometmq.message.properties import encode_properties

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
            struct.pack_into(">q", data, at[-1] + RECORD.offsets["physical_offset"], BASE + at[-1])
        self.view = memoryview(bytes(data) + bytes(room))
        self.at = np.array(at, np.int64)
        self.sizes = np.array(sizes, np.int64)

    def one_by_one(self, text: str) -> list[bool]:
        matches = parse_selector(text).matches_record
        places = zip(self.at.tolist(), self.sizes.tolist(), strict=True)
        return [matches(self.view[at : at + size]) for at, size in places]

    def together(self, text: str) -> list[bool]:
        found = parse_selector(text).matches_block(self.view, BASE, self.at, self.sizes, len(TOPIC), MAX_FILTER_WORK)
        return [bool(one) for one in found.wanted]

    def asked_one_by_one(self, text: str) -> int:
        """Count the records that are not decided by array operations."""
        asked = []

        def matches(one: memoryview) -> bool:
            asked.append(one)
            return False

        look = block_predicate(parse_selector(text).expression, matches)
        look(self.view, BASE, self.at, self.sizes, len(TOPIC), MAX_FILTER_WORK)
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


@pytest.mark.parametrize("length", [1, 6, 7, 8, 9, 14, 15, 16, 17])
def test_texts_of_every_length_end_where_they_end(length: int) -> None:
    text = "abcdefghijklmnopqr"[:length]
    others = (text + "x", text[:-1] + "X", text[:-1] or "y", text + "\x01", "Z" + text[1:])
    log = Log([record(f"a\x01{one}\x02b\x01{number}") for number in range(8) for one in (text, *others)])
    for expression in (f"a = '{text}'", f"a <> '{text}'", f"a IN ('{text}', 'q')", f"a NOT IN ('{text}', 'q')"):
        assert log.together(expression) == log.one_by_one(expression)
        assert log.asked_one_by_one(expression) == 0


def test_a_text_with_a_separator_is_no_value() -> None:
    log = Log([record("a\x011\x02b\x01x")] * 40)
    for expression in ("a = '1\x02b'", "a = '1\x02'", "a <> '1\x02b'", "a IN ('1\x02', '1\x02b\x01x')"):
        assert log.together(expression) == log.one_by_one(expression)


NUMBERS = [
    *(sign + "1234567890123456789"[:digits] for sign in ("", "-") for digits in range(20)),
    *("0", "-0", "0000007", "-000008", "00000000000009", "99999999", "-9999999", "2147483647", "-2147483648"),
    *(
        "1-",
        "1/2",
        "1:2",
        "12 ",
        " 12",
        "1\x01",
        "\x7f1",
        "\x8012",
        "1\xff",
        "--1",
        "+1",
        "1.",
        ".5",
        "-.5",
        "1e3",
        "7L",
    ),
]


@pytest.mark.parametrize("bound", ["-0", "7", "1234567", "99999999", "3000000000", "-12", "7.5", "123456789012345.5"])
def test_numbers_however_they_are_written(bound: str) -> None:
    log = Log([record(f"pad\x01{'p' * number}\x02n\x01{one}\x02z\x01") for number, one in enumerate(NUMBERS)])
    for symbol in ("=", "<>", "<", "<=", ">", ">="):
        assert log.together(f"n {symbol} {bound}") == log.one_by_one(f"n {symbol} {bound}")


def test_what_few_rows_pass_is_told_of_these_alone() -> None:
    chance = random.Random(11)

    def number() -> str:
        return chance.choice(("+1", "x", "", "12345678901")) if chance.random() < 0.2 else str(chance.randrange(-9, 9))

    log = Log(
        [
            record(
                f"k\x01{chance.choice('abcdefgh')}\x02n\x01{number()}\x02m\x01{number()}"
                + "\x02k\x01a" * (each % 9 == 0)
            )
            for each in range(400)
        ]
    )
    for expression in (
        "n > 0 AND m < 3 AND k = 'a' AND missing IS NULL",
        "m <> 5 AND n >= 2 AND n < 4 AND k IN ('a', 'b')",
        "k = 'a' AND k = 'b' AND n > 1",
        "n = 3 AND (m = 2 OR k = 'c') AND k <> 'd'",
        "n = 3 AND m = n",
        "missing = 'x' AND n > 0",
    ):
        assert log.together(expression) == log.one_by_one(expression)


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


def test_a_block_leaves_no_memory_to_the_garbage_collector() -> None:
    log = Log([record(f"a\x01{number % 7}\x02b\x01{number}.5\x02c\x01x{number}") for number in range(500)])
    expressions = [parse_selector("a = '3' AND b > 12.5 AND c IN ('x9', 'y')"), parse_selector("a < 3 OR c IS NULL")]
    gc.disable()
    try:
        gc.collect()
        for selector in expressions:
            selector.matches_block(log.view, BASE, log.at, log.sizes, len(TOPIC), MAX_FILTER_WORK)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_few_wide_rows_do_not_widen_all() -> None:
    records = [record("a\x011\x02pad\x01" + "p" * (20_000 if number == 7 else 10)) for number in range(100)]
    log = Log(records)
    block = RecordBlock(log.view, BASE, log.at, log.sizes, len(TOPIC), MAX_FILTER_WORK)
    assert block.rows.count == 99
    assert len(block.rows.data) < 200 * 100
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
    results: list[bool] = []
    parts = 0
    while len(results) < 100:
        at = len(results)
        found = matches_block(log.view, BASE, log.at[at:], log.sizes[at:], len(TOPIC), MAX_FILTER_WORK).wanted
        assert len(found)
        results += found.tolist()
        parts += 1
    assert results == expected
    assert parts > 4


@pytest.mark.parametrize(("names", "value"), [(50, "1"), (1, "p" * 3_500)], ids=["many properties", "many bytes"])
def test_what_is_too_much_for_one_look_is_looked_at_together_in_parts(names: int, value: str) -> None:
    text = "".join(f"a{name}\x01{value}\x02" for name in range(names))
    log = Log([record(f"{text}n\x01{number % 9}") for number in range(400)])
    expression = " OR ".join(f"a{name} = 'x'" for name in range(100)) + " OR n = 7"
    found = log.together(expression)
    assert 24 <= len(found) < 400
    assert found == log.one_by_one(expression)[: len(found)]
    assert log.asked_one_by_one(expression) == 0
