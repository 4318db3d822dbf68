"""CRC-32 (IEEE 802.3, as in ``java.util.zip.CRC32``) for bodies, records and small files.

Every message is checked on writing and reading. zlib-ng uses the processor's carry-less multiplication: For a body of 1
KB, zlib-ng takes 0.06 µs and zlib takes 0.23 µs. zlib gives the same values, and is used if zlib-ng is not installed.
(ISA-L is as fast, but leaves the upper halves of the AVX registers in use; SHA-1 then takes three times as long.)
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
