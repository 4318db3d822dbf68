"""JSON from outside is counted before it is parsed: values and nesting, not what stands in strings."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.pace import slowness_of_thread

from cometmq.remoting.json_size import MAX_JSON_DEPTH, MAX_JSON_VALUES, is_small_json

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['"', "\\", '\\"', "[{,", '"[', "\\\\"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@given(ANY, st.booleans())
def test_anything_of_ordinary_size_is_small(value: Any, is_ascii: bool) -> None:
    assert is_small_json(json.dumps(value, ensure_ascii=is_ascii).encode())
    assert is_small_json(json.dumps(json.dumps(value)).encode())


@pytest.mark.parametrize("value", ["[]", "1", '""', "{}", '{"a":[]}', '"a\\"b"'])
def test_more_values_are_not_small(value: str) -> None:
    few, many = (f"[{','.join([value] * count)}]".encode() for count in (MAX_JSON_VALUES // 5, MAX_JSON_VALUES + 2))
    assert is_small_json(few)
    assert not is_small_json(many)


def test_nesting_has_a_limit() -> None:
    assert is_small_json(nested(MAX_JSON_DEPTH))
    assert not is_small_json(nested(3 * MAX_JSON_DEPTH))
    assert not is_small_json(b'{"a":' * 200 + b"1" + b"}" * 200)
    assert not is_small_json(b"[" * 200)


def test_a_long_text_is_one_value() -> None:
    text = json.dumps({"body": json.dumps([[], {}, "a,b"] * 100_000)})
    assert is_small_json(text.encode())


def test_text_that_is_no_json_is_left_to_the_parser() -> None:
    for text in (b"", b"[", b"]", b'"', b"\\", b'{"a":', b"\xff", b'"\\'):
        assert is_small_json(text)


@pytest.mark.parametrize("unit", [b"[],", b'"",', b'\\"', b"\\\\", b"x", b"[", b"[{]}", b'"\\"'])
def test_four_megabytes_are_checked_in_a_moment(unit: bytes) -> None:
    text = unit * ((4 << 20) // len(unit))
    began = time.thread_time()
    is_small_json(text)
    took_s = time.thread_time() - began
    assert took_s < 0.05 or took_s < 0.05 * slowness_of_thread()
