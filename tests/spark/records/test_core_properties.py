"""The compiled core makes the same columns of properties as Python."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import cometmq.spark.records.property_columns as property_columns
from cometmq.core import CORE
from cometmq.message.properties import decode_properties
from cometmq.spark.records.property_columns import PropertyTexts

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

MAP = pa.map_(pa.string(), pa.string())

pieces = st.builds(
    lambda name, middle, value: name + middle + value,
    st.sampled_from(["TAGS", "KEYS", "a", "中", ""]) | st.text("ab\x01", max_size=3),
    st.sampled_from(["\x01", "\x01", "\x01", ""]),
    st.text("xyz \x01中😀", max_size=6),
)
texts = st.builds(
    lambda found, end: "\x02".join(found) + end, st.lists(pieces, max_size=6), st.sampled_from(["\x02", ""])
)


def both(monkeypatch: pytest.MonkeyPatch, stored: list[bytes]) -> list[list[Any]]:
    """The map and single properties of texts, with the core and without it."""
    found = []
    for core in (CORE, None):
        monkeypatch.setattr(property_columns, "CORE", core)
        columns = PropertyTexts(pa.array(stored, pa.binary()))
        made = [columns.maps(MAP), columns.values_of("TAGS"), columns.values_of("a"), columns.values_of("none")]
        for column in made:
            column.validate(full=True)
        found.append([column.to_pylist() for column in made])
    return found


@given(st.lists(texts, min_size=1, max_size=12))
def test_any_properties_make_the_same_columns(found: list[str]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled, python = both(monkeypatch, [text.encode() for text in found])
    assert compiled == python
    assert [dict(row) for row in compiled[0]] == [decode_properties(text) for text in found]


@given(
    st.lists(st.sampled_from(["TAGS", "a", "ab", "b", "中"]), max_size=4, unique=True),
    st.lists(st.lists(st.text("xyz 中😀", min_size=1, max_size=6), min_size=4, max_size=4), min_size=1, max_size=9),
    st.lists(texts, max_size=1),
)
def test_records_of_one_producer_make_the_same_columns(
    names: list[str], values: list[list[str]], other: list[str]
) -> None:
    """All have the same names, or all but the last one."""
    stored = [
        "\x02".join(f"{name}\x01{value}" for name, value in zip(names, of_row, strict=False)) for of_row in values
    ] + other
    with pytest.MonkeyPatch.context() as monkeypatch:
        compiled, python = both(monkeypatch, [text.encode() for text in stored])
    assert compiled == python


@pytest.mark.parametrize(
    "stored",
    [b"TAGS\x01\xff\x02a\x01b", b"".join(b"n%d\x01v\x02" % n for n in range(100)), b""],
    ids=["no UTF-8", "many", "none"],
)
def test_texts_that_the_core_leaves_make_the_same_columns(monkeypatch: pytest.MonkeyPatch, stored: bytes) -> None:
    compiled, python = both(monkeypatch, [b"a\x01b", stored, b"TAGS\x01x\x02"])
    assert compiled == python


def test_the_core_makes_the_plain_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = PropertyTexts(pa.array([b"a\x01b", b""], pa.binary()))
    monkeypatch.setattr(PropertyTexts, "_pieces", property(lambda _: pytest.fail("properties came to Python")))
    assert columns.maps(MAP).to_pylist() == [[("a", "b")], []]
    assert columns.values_of("a").to_pylist() == ["b", None]
