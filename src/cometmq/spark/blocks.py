"""Where the bodies of answers are written: blocks of memory, one body behind the other.

Bodies that arrive in the order in which they are needed lie side by side then, and are one piece without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes ``begin`` to ``end`` of a block."""

    block: memoryview
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    @property
    def data(self) -> memoryview:
        """The bytes, in place."""
        return self.block[self.begin : self.end]

    def is_followed_by(self, other: Piece) -> bool:
        """Whether ``other`` begins where this one ends."""
        return self.block is other.block and self.end == other.begin

    def shortened(self, size: int) -> Piece:
        """Return its first ``size`` bytes."""
        return Piece(self.block, self.begin, self.begin + size)


class Blocks:
    """Gives room in blocks of ``block_bytes``; a block lives as long as a piece of it."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self.last = Piece(memoryview(bytearray()), 0, 0)
        """What was given last."""

    def room(self, size: int) -> memoryview:
        """Return ``size`` bytes to write to, behind those given before where they still fit."""
        block, at = self.last.block, self.last.end
        if size > len(block) - at:
            block, at = np.empty(max(size, self._block_bytes), np.uint8).data, 0
        self.last = Piece(block, at, at + size)
        return self.last.data


def contiguous(pieces: Sequence[Piece]) -> memoryview:
    """All of some pieces, one behind the other: in place where they lie so, else copied."""
    if all(piece.is_followed_by(after) for piece, after in pairwise(pieces)):
        return pieces[0].block[pieces[0].begin : pieces[-1].end]
    return memoryview(b"".join(piece.data for piece in pieces))
