"""HPACK in the compiled core: headers, sizes and errors are those of Python, for every sequence of blocks."""

from __future__ import annotations

import sys
import tracemalloc
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.core import CORE
from cometmq.proxy.http2.hpack import HpackDecoder, HpackError, encode_headers, share

pytestmark = pytest.mark.skipif(CORE is None, reason="the compiled core is not installed (make test builds it)")

MAX_BYTES = 400
RFC_BLOCKS = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
)
"""Blocks of RFC 7541, C.4 and C.6, with Huffman's code."""

_texts = st.one_of(
    st.sampled_from(("", "a", "te", "trailers", "x" * 90, "\xe9")), st.text(st.characters(max_codepoint=255))
)


def _literal(first: int, name: str, value: str) -> bytes:
    texts = b"".join(
        bytes([len(text)]) + text for text in (name.encode("latin-1")[:120], value.encode("latin-1")[:120])
    )
    return bytes([first]) + texts


_pieces = st.one_of(
    st.builds(lambda number: bytes([0x80 | number]), st.integers(0, 127)),
    st.builds(_literal, st.sampled_from((0x00, 0x10, 0x40)), _texts, _texts),
    st.builds(lambda index, text: bytes([0x40 | index, len(text)]) + text, st.integers(1, 63), st.binary(max_size=20)),
    st.builds(lambda size: bytes([0x20 | size]), st.integers(0, 31)),
    st.sampled_from((b"\x3f\xe1\x1f", b"\x3f\x45", b"\xff\x00", b"\xff\x7f")),
    st.builds(lambda text: bytes([0x00, 1, 97, 0x80 | len(text)]) + text, st.binary(max_size=30)),
    st.binary(max_size=8),
)
_blocks = st.lists(st.lists(_pieces, max_size=8).map(b"".join), max_size=8)


def _results(decoder: object, blocks: list[bytes]) -> list[object]:
    found: list[object] = []
    for block in blocks:
        try:
            headers, size = decoder.decode(block)  # type: ignore[attr-defined]
        except HpackError as error:
            return [*found, str(error)]
        found.append((list(headers.items()), size))
    return found


@settings(max_examples=400, deadline=None)
@given(_blocks)
def test_every_sequence_of_blocks_gives_the_same(blocks: list[bytes]) -> None:
    assert _results(CORE.HpackDecoder(MAX_BYTES, HpackError, share), blocks) == _results(
        HpackDecoder(MAX_BYTES), blocks
    )


def test_blocks_of_the_rfc_give_the_same() -> None:
    blocks = [bytes.fromhex(block) for block in RFC_BLOCKS]
    found = _results(CORE.HpackDecoder(16_384, HpackError, share), blocks)
    assert found == _results(HpackDecoder(16_384), blocks)
    assert len(found) == len(blocks)


def test_a_table_that_is_filled_many_times_gives_the_same() -> None:
    blocks = []
    for number in range(300):
        added = b"\x40" + encode_headers(("x-mq-request-id", f"{number:036d}"))[1:]
        blocks.append(added + b"\xbe\xc5" + encode_headers(("a", "b")))
    blocks = [block.replace(b"\xc5", b"") if number < 8 else block for number, block in enumerate(blocks)]
    found = _results(CORE.HpackDecoder(16_384, HpackError, share), blocks)
    assert found == _results(HpackDecoder(16_384), blocks)
    assert len(found) == len(blocks)


@pytest.mark.parametrize("is_core", [True, False])
def test_equal_texts_of_clients_are_shared_and_not_interned(is_core: bool) -> None:
    decoders = [CORE.HpackDecoder(16_384, HpackError, share) if is_core else HpackDecoder(16_384) for _ in range(2)]
    fresh = str(uuid.uuid4())
    block = _literal(0x40, "x-shared", fresh)
    first, second = (decoder.decode(block)[0]["x-shared"] for decoder in decoders)
    assert first is second
    copy = "".join(fresh.split())
    assert sys.intern(copy) is not first  # Python 3.12 and later may never free an interned text


@pytest.mark.parametrize("is_core", [True, False])
def test_texts_of_clients_are_freed(is_core: bool) -> None:
    decoder = CORE.HpackDecoder(16_384, HpackError, share) if is_core else HpackDecoder(16_384)
    tracemalloc.start()
    try:
        for number in range(20_000):
            decoder.decode(_literal(0x40, "x-mq-request-id", f"{number:0118d}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1_000_000  # of 3.3 MB
