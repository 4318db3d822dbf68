"""Selectors on stored records give the answer that they give on the properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filter import naive, questions
from tests.filter.stored_records import V4, V6, as_v2, record

from cometmq.filter import EvaluationError, FilterError, parse_selector
from cometmq.message.properties import decode_properties


def matches(text: str, stored: bytes) -> bool:
    return parse_selector(text).matches_record(memoryview(stored))


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("stored", [V4, V6])
@pytest.mark.parametrize("version", [1, 2])
def test_layouts(born: bytes, stored: bytes, version: int) -> None:
    bytes_of = record("a\x011\x02b\x01x\x02", born=born, stored=stored, topic="Topic")
    if version == 2:
        bytes_of = as_v2(bytes_of, "Topic")
    assert matches("a = 1 AND b = 'x'", bytes_of)
    assert not matches("a = 2 OR b = 'y' OR c IS NOT NULL", bytes_of)


def test_a_topic_longer_than_a_byte_can_say() -> None:
    short = as_v2(record("a\x011\x02", topic="Topic"), "Topic")
    at = short.index(b"\0\x05Topic")
    stored = short[:at] + (300).to_bytes(2, "big") + b"t" * 300 + short[at + 7 :]
    assert matches("a = 1", stored)


@pytest.mark.parametrize(
    ("properties_text", "text", "expected"),
    [
        ("a\x01x", "a = 'x'", True),
        ("a\x011\x02a\x012\x02", "a = 2", True),
        ("a\x011\x02a\x012\x02", "a = 1", False),
        ("a\x01x\x02a\x01y\x02", "a = 'x'", False),
        ("a\x011\x02a\x01\x02", "a = 1", True),
        ("a\x01\x02", "a IS NULL", True),
        ("xa\x011\x02", "a IS NULL", True),
        ("b\x01a\x01x\x02", "a = 'x'", False),
        ("b\x01a\x01x\x02", "a IS NULL", True),
        ("ab\x01x\x02", "b = 'x'", False),
        ("a\x01xy\x02", "a = 'x'", False),
        ("a\x01b\x01c\x02", "a IS NOT NULL", True),
        ("", "a IS NULL", True),
        ("a\x01ü€\x02", "a = 'ü€'", True),
        ("a\x01z\x02", "a = 1 OR a = 'z'", False),
    ],
)
def test_finding_properties(properties_text: str, text: str, expected: bool) -> None:
    assert matches(text, record(properties_text)) is expected
    assert parse_selector(text).matches(decode_properties(properties_text)) is expected


def test_a_length_that_looks_like_a_separator_is_not_one() -> None:
    stored = record("b\x01" + "x" * (0x261 - 3) + "\x02")
    assert stored[stored.index(b"b\x01") - 2 :].startswith(b"\x02ab\x01")
    assert matches("ab IS NULL AND b IS NOT NULL", stored)


def test_neither_body_nor_topic_is_searched() -> None:
    assert not matches("a = 'x'", record("", body=b"\x02a\x01x\x02"))


def test_bytes_that_are_no_text_do_not_hide_other_properties() -> None:
    stored = record("a\x01XX\x02b\x01y\x02").replace(b"XX", b"\xff\xe2")
    assert matches("b = 'y' AND a IS NOT NULL", stored)
    assert matches("a = '\ufffd\ufffd'", stored)


@given(st.binary(max_size=300))
def test_what_is_no_record_does_not_match(garbage: bytes) -> None:
    assert matches("a IS NULL", garbage) is False


@given(st.integers(0, 400), st.integers(0, 255))
def test_damaged_records_do_no_harm(at: int, value: int) -> None:
    damaged = bytearray(record("a\x01x\x02", body=b"b" * 50))
    damaged[at % len(damaged)] = value
    assert matches("a = 'x' OR a IS NULL", bytes(damaged)) in (True, False)
    assert matches("a = 'x' OR a IS NULL", bytes(damaged[: at % len(damaged)])) is False


@given(st.integers())
def test_the_same_as_the_plain_evaluation(seed: int) -> None:
    chance = random.Random(seed)
    text = questions.expression(chance)
    try:
        selector = parse_selector(text)
    except FilterError:
        return
    for _ in range(3):
        properties = {name: value for name, value in questions.properties(chance).items() if value}
        try:
            expected = naive.truth(selector.expression, properties)
        except naive.RaisedError:
            with pytest.raises(EvaluationError):
                selector.evaluate(properties)
            expected = None
        else:
            assert selector.evaluate(properties) is expected
        assert selector.matches(properties) is (expected is True)
        stored = record("".join(f"{name}\x01{value}\x02" for name, value in properties.items()))
        assert selector.matches_record(memoryview(stored)) is (expected is True)
