"""The Bloom filter data in ``consumerFilter.json`` (``BloomFilter``, ``BloomFilterData``)."""

from __future__ import annotations

import math
import struct
from typing import Final

import msgspec

_MASK: Final = 2**64 - 1
_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_PAIR: Final = struct.Struct("<QQ")
_BLOCK_BYTES: Final = 16


class BloomFilterData(msgspec.Struct, frozen=True, rename="camel"):
    """The Bloom filter data in the file: the size of the bitmap, and the positions of an entry's bits."""

    bit_num: int
    bit_pos: list[int]


class BloomFilter(msgspec.Struct, frozen=True):
    """A Bloom filter that sets ``hash_count`` bits for each entry in a bitmap of ``bit_count`` bits."""

    hash_count: int
    bit_count: int

    @classmethod
    def create(cls, error_rate_percent: int = 20, entries: int = 32) -> BloomFilter:
        """Create the filter for given values of ``maxErrorRateOfBloomFilter`` and ``expectConsumerNumUseFilter``.

        :raises ValueError: the rate is not between 1 and 99, or there are no entries.
        """
        if not 1 <= error_rate_percent <= 99 or entries < 1:
            raise ValueError("a Bloom filter requires an error rate of 1 to 99 % and at least one entry")
        rate = error_rate_percent / 100.0
        bits = math.ceil(entries * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        return cls(hash_count=math.ceil(math.log(rate) / math.log(0.5)), bit_count=math.ceil(bits / 8) * 8)

    def data(self, group: str, topic: str) -> BloomFilterData:
        """Return the filter bits for ``group`` and ``topic``."""
        return BloomFilterData(bit_num=self.bit_count, bit_pos=self.positions(f"{group}#{topic}"))

    def made(self, data: BloomFilterData | None) -> bool:
        """Return whether the data has this filter's bitmap size and number of bits (``BloomFilter.isValid``)."""
        return data is not None and data.bit_num == self.bit_count and len(data.bit_pos) == self.hash_count

    def positions(self, text: str) -> list[int]:
        """Return the bit positions for an entry; a position may occur twice."""
        hashed = murmur3_128_low(text.encode())
        positions = []
        for number in range(1, self.hash_count + 1):
            combined = ((hashed & 0xFFFFFFFF) + number * (hashed >> 32)) & 0xFFFFFFFF
            if combined >> 31:
                combined ^= 0xFFFFFFFF
            positions.append(combined % self.bit_count)
        return positions


def murmur3_128_low(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 x64 128 with seed 0, as an unsigned number."""
    h1 = h2 = 0
    whole = len(data) - len(data) % _BLOCK_BYTES
    for k1, k2 in _PAIR.iter_unpack(data[:whole]):
        h1 ^= _mix_k1(k1)
        h1 = ((_rotate(h1, 27) + h2) * 5 + 0x52DCE729) & _MASK
        h2 ^= _mix_k2(k2)
        h2 = ((_rotate(h2, 31) + h1) * 5 + 0x38495AB5) & _MASK
    k1, k2 = _PAIR.unpack(data[whole:].ljust(_BLOCK_BYTES, b"\0"))
    h1 ^= _mix_k1(k1) ^ len(data)  # an empty rest is all zeros, which the mixing leaves unchanged
    h2 ^= _mix_k2(k2) ^ len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final(h1) + _final(h2)) & _MASK


def _mix_k1(k1: int) -> int:
    return _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK


def _mix_k2(k2: int) -> int:
    return _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _final(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
