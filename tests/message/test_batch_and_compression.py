"""Batch bodies and packed bodies: round trips, lying lengths, bombs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.message.batch import BatchError, BatchPiece, decode_batch, encode_batch
from cometmq.message.compression import DecompressionError, compress, decompress
from cometmq.message.sysflag import CompressionType, with_compression

pieces = st.lists(st.builds(BatchPiece, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), st.text(max_size=30)))


@given(pieces)
def test_a_batch_reads_back_as_written(batch: list[BatchPiece]) -> None:
    assert decode_batch(encode_batch(batch)) == batch


def test_a_batch_cut_anywhere_is_refused_or_ends_between_messages() -> None:
    batch = [BatchPiece(n, b"body%d" % n, "a\x01b") for n in range(3)]
    body = encode_batch(batch)
    whole = {len(encode_batch(batch[:n])): n for n in range(4)}
    for end in range(len(body)):
        if end in whole:
            assert decode_batch(body[:end]) == batch[: whole[end]]
        else:
            with pytest.raises(BatchError):
                decode_batch(body[:end])


@given(st.binary(max_size=300))
def test_garbage_is_refused_never_crashes(garbage: bytes) -> None:
    try:
        decode_batch(garbage)
    except BatchError:
        return
    assert garbage == encode_batch(decode_batch(garbage)) or len(garbage) >= 22


def test_more_messages_than_the_limit_are_refused() -> None:
    body = encode_batch([BatchPiece(0, b"", "")] * 11)
    with pytest.raises(BatchError, match="more than 10 messages"):
        decode_batch(body, max_messages=10)


@given(st.binary(max_size=2000), st.sampled_from(CompressionType))
def test_a_packed_body_is_unpacked_to_itself(body: bytes, kind: CompressionType) -> None:
    assert decompress(compress(body, kind), with_compression(0, kind)) == body


@pytest.mark.parametrize("kind", CompressionType)
def test_a_packed_body_cut_anywhere_is_refused(kind: CompressionType) -> None:
    packed = compress(bytes(range(256)) * 8, kind)
    for end in range(len(packed)):
        with pytest.raises(DecompressionError):
            decompress(packed[:end], with_compression(0, kind))


@pytest.mark.parametrize("kind", CompressionType)
def test_a_bomb_is_refused_at_the_limit(kind: CompressionType) -> None:
    packed = compress(b"\0" * 50_000_000, kind)
    with pytest.raises(DecompressionError, match="larger than 1000000 bytes"):
        decompress(packed, with_compression(0, kind), 1_000_000)


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(DecompressionError, match="unknown compression type 7"):
        decompress(b"x", 0x701)
