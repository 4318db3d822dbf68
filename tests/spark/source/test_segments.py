"""Bodies that arrive in order are handed on in place; others are put together by copying."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.source.fetch import Blocks, Piece, contiguous

BLOCK = 100


def filled(sizes: list[int]) -> list[Piece]:
    """Pieces of these sizes, given one after the other, each full of its number."""
    blocks, pieces = Blocks(BLOCK), []
    for number, size in enumerate(sizes):
        blocks.room(size)[:] = bytes([number]) * size
        pieces.append(blocks.last)
    return pieces


@given(st.lists(st.integers(0, 150), min_size=1, max_size=30), st.randoms())
def test_pieces_hold_what_was_written_in_whatever_order_they_are_taken(sizes: list[int], noise: object) -> None:
    pieces = filled(sizes)
    order = list(range(len(sizes)))
    noise.shuffle(order)  # type: ignore[attr-defined]
    assert bytes(contiguous([pieces[n] for n in order])) == b"".join(bytes([n]) * sizes[n] for n in order)


def test_what_fits_a_block_is_not_copied() -> None:
    pieces = filled([30, 30, 40, 1])
    together = contiguous(pieces[:3])
    together[35] = 99
    assert pieces[1].data[5] == 99
    assert not pieces[2].is_followed_by(pieces[3])


def test_a_body_larger_than_a_block_has_one_of_its_own() -> None:
    small, large, after = filled([10, 150, 10])
    assert len(large.block) == 150
    assert not small.is_followed_by(large)
    assert not large.is_followed_by(after)


def test_a_shortened_piece_keeps_its_begin() -> None:
    (piece,) = filled([10])
    assert bytes(piece.shortened(4).data) == bytes(4)
