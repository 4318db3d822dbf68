"""Sums of bytes are CRC-32's, whichever library computes them."""

from __future__ import annotations

import importlib.util
import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq import checksum
from cometmq.checksum import crc32


def test_the_check_value_of_the_standard() -> None:
    assert crc32(b"123456789") == 0xCBF43926


@given(st.binary(max_size=5000), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_sums_are_zlib_s_wherever_bytes_begin_and_whatever_they_follow(data: bytes, begin: int, before: int) -> None:
    view = memoryview(data)[begin:]
    assert crc32(view) == zlib.crc32(view)
    assert crc32(view, before) == zlib.crc32(view, before)


def test_without_zlib_ng_zlib_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    spec = importlib.util.spec_from_file_location("checksum_without_zlib_ng", checksum.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.crc32 is zlib.crc32
