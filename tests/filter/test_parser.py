"""Malformed and oversized selectors are refused with words, quickly; nothing else ever happens to them."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.filter import questions
from tests.helpers.pace import is_in_time

from cometmq.filter import FilterError, parse_selector
from cometmq.filter.selector import _parsed, _parsed_long
from cometmq.limits import (
    CACHED_FILTERS,
    CACHED_LONG_FILTERS,
    LONG_FILTER_CHARS,
    MAX_FILTER_CHARS,
    MAX_FILTER_DEPTH,
    MAX_FILTER_TERMS,
)

SECONDS_MAX = 5.0


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("", 1, "the expression is empty"),
        (" \n", 1, "the expression is empty"),
        ("a > 1 AND", 10, "expected a property, a value or '(', not the end of the expression"),
        ("a != 1", 3, "write <> for not equal"),
        ("a = 'x", 5, "unterminated string"),
        ('a = "x"', 5, "single quotes"),
        ("a > '5'", 5, "> compares numbers only"),
        ("(a = 1", 7, "expected ')', not the end"),
        ("a = NULL", 5, "IS NULL or IS NOT NULL"),
        ("a BETWEEN 3 AND 1", 11, "larger than the second"),
        ("a BETWEEN 1 OR 3", 13, "expected AND, not 'OR'"),
        ("a IN (1)", 7, "expected a string in single quotes, not '1'"),
        ("NOT a IN ('x')", 1, "IN requires the name of a property"),
        ("a NOT LIKE 'x'", 7, "expected BETWEEN or IN, not 'LIKE'"),
        ("a = 0.0", 5, "write 0 without a point"),
        ("a = 99999999999999999999", 5, "64 bits"),
        ("a = 1 AND 5", 11, "a value alone is not a condition"),
        ("TRUE = 1", 1, "values of another type"),
        ("中 = 1", 1, "not part of the selector language"),
    ],
)
def test_errors_say_where_and_why(text: str, position: int, words: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_selector(text)
    assert caught.value.position == position
    assert words in str(caught.value)
    assert f"at character {position}" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "a = '" + "x" * MAX_FILTER_CHARS + "'",
        "(" * (MAX_FILTER_DEPTH + 1) + "a = 1" + ")" * (MAX_FILTER_DEPTH + 1),
        "(" * 8_000,
        "NOT " * 4_000 + "a",
        "- " * 8_000 + "a",
        "+" * 16_000 + "a",
        "a = " * (MAX_FILTER_DEPTH + 1) + "a",
        "a" + " IS NULL" * 1_000,
        "(" * 30 + "a" + " IS NULL)" * 30 + " IS NULL" * 30,
        " OR ".join(["a = 1"] * MAX_FILTER_TERMS),
    ],
    ids=lambda text: text[:12],
)
def test_beyond_the_limits(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FilterError, match=r"characters; at most \d+ are allowed|nested more than|names and values"):
        parse_selector(text)
    assert is_in_time(time.process_time() - began, SECONDS_MAX)


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_FILTER_DEPTH - 2) + "a = 1" + ")" * (MAX_FILTER_DEPTH - 2),
        " AND ".join(["a = 1"] * (MAX_FILTER_TERMS // 2)),
        "a IN (" + ",".join(f"'{number}'" for number in range(1, 2_000)) + ")",
    ],
    ids=lambda text: text[:12],
)
def test_within_the_limits(text: str) -> None:
    assert parse_selector(text).evaluate({"a": "1"}) is True


@pytest.mark.parametrize(
    "text",
    ["a = '" + "''" * 8_000, "/" + "*" * 16_000, "/*a" * 5_000, "1" * 16_000, "'" * 16_001],
)
def test_long_tokens_take_no_long_time(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FilterError):
        parse_selector(text)
    assert is_in_time(time.process_time() - began, SECONDS_MAX)


def outcome(text: str) -> str:
    try:
        parse_selector(text)
    except FilterError as error:
        return str(error) if 1 <= error.position <= len(text) + 1 else ""
    return "fine"


@given(st.text())
def test_any_text_is_parsed_or_refused(text: str) -> None:
    assert outcome(text)


@given(st.integers())
def test_any_words_are_parsed_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    assert outcome(questions.junk(chance))
    assert outcome(questions.expression(chance))


def test_the_ignored_rest_is_told() -> None:
    assert parse_selector("a LIKE 'x%'").ignored == "LIKE 'x%'"
    assert parse_selector("a > 1 ").ignored == ""


def test_parsed_once_and_forgotten_at_last() -> None:
    assert parse_selector("once = 1") is parse_selector("once = 1")
    for number in range(CACHED_FILTERS + 10):
        parse_selector(f"a = {number}")
        parse_selector(f"a = {number} -- {'x' * LONG_FILTER_CHARS}")
    assert _parsed.cache_info().currsize == CACHED_FILTERS
    assert _parsed_long.cache_info().currsize == CACHED_LONG_FILTERS


def test_failures_are_kept_and_raised_again() -> None:
    assert outcome("a >") == outcome("a >") != "fine"
