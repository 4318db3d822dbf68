"""Slices of a buffer are what Python cuts out of it, wherever they lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="PyArrow is not installed (pip install cometmq[spark])")

from cometmq.spark.records.slices import slices


@st.composite
def cuts(draw: st.DrawFn) -> tuple[bytes, list[tuple[int, int, bool]]]:
    """A buffer, and of each slice its start, its end and whether it is missing."""
    buffer = draw(st.binary(min_size=1, max_size=60))
    place = st.integers(0, len(buffer))
    pairs = draw(st.lists(st.tuples(place, place, st.booleans()), max_size=10))
    return buffer, [(min(a, b), max(a, b), missing) for a, b, missing in pairs]


@settings(deadline=None, max_examples=300)
@given(cuts())
def test_slices_are_what_python_cuts_out(given: tuple[bytes, list[tuple[int, int, bool]]]) -> None:
    buffer, wanted = given
    starts = np.array([start for start, _, _ in wanted], np.int64)
    lengths = np.array([end - start for start, end, _ in wanted], np.int64)
    missing = np.array([gone for _, _, gone in wanted], np.bool_)
    data = np.frombuffer(buffer, np.uint8)
    assert slices(data, starts, lengths).to_pylist() == [buffer[start:end] for start, end, _ in wanted]
    known = [None if gone else buffer[start:end] for start, end, gone in wanted]
    assert slices(data, starts, lengths, missing).to_pylist() == known
