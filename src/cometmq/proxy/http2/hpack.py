"""HTTP/2 header compression (RFC 7541): decodes clients' header blocks, and encodes the server's without a table.

Clients add nearly every header to the connection's table once, and refer to it by number later. A block therefore
consists of numbers, and one or two texts that are new in each request.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Protocol

from cometmq.core import CORE

TABLE_BYTES: Final = 4_096
"""The size of a client's header table, which is HTTP/2's default."""
_ENTRY_BYTES: Final = 32
"""Overhead of a table entry in bytes, in addition to its texts (RFC 7541, 4.1)."""
_MAX_UPDATES: Final = 2
"""Maximum number of table size updates at the start of a header block (RFC 7541, 4.2)."""
_TEXTS_SHARED: Final = 1_024
"""Number of texts in clients' tables that connections share: at most 4 MB."""
_BOMB_FACTOR: Final = 16
"""A header list this many times larger than the limit is treated as an attack that repeats a large table entry."""

_STATIC_TEXT: Final = (
    "=;:authority=;:method=GET;:method=POST;:path=/;:path=/index.html;:scheme=http;:scheme=https;:status=200;"
    ":status=204;:status=206;:status=304;:status=400;:status=404;:status=500;accept-charset=;"
    "accept-encoding=gzip, deflate;accept-language=;accept-ranges=;accept=;access-control-allow-origin=;age=;"
    "allow=;authorization=;cache-control=;content-disposition=;content-encoding=;content-language=;"
    "content-length=;content-location=;content-range=;content-type=;cookie=;date=;etag=;expect=;expires=;"
    "from=;host=;if-match=;if-modified-since=;if-none-match=;if-range=;if-unmodified-since=;last-modified=;"
    "link=;location=;max-forwards=;proxy-authenticate=;proxy-authorization=;range=;referer=;refresh=;"
    "retry-after=;server=;set-cookie=;strict-transport-security=;transfer-encoding=;user-agent=;vary=;via=;"
    "www-authenticate="
)
"""The static header table (Appendix A); its numbers start at 1."""
_STATIC: Final[list[tuple[str, str, int]]] = [
    (name, value, len(name) + len(value) + _ENTRY_BYTES)
    for name, _, value in (entry.partition("=") for entry in _STATIC_TEXT.split(";"))
]
_FIRST_OWN: Final = len(_STATIC)

_CODE_LENGTHS: Final = (
    "13 23 28 28 28 28 28 28 28 24 30 28 28 30 28 28 28 28 28 28 28 28 30 28 28 28 28 28 28 28 28 28 6 10 10 12 "
    "13 6 8 11 10 10 8 11 8 6 6 6 5 5 5 6 6 6 6 6 6 6 7 8 15 6 12 10 13 6 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 "
    "7 7 8 7 8 13 19 13 14 6 15 5 6 5 6 5 6 6 6 5 7 7 6 6 6 5 6 7 6 5 5 6 7 7 7 7 7 15 11 14 13 28 20 22 20 20 22 "
    "22 22 23 22 23 23 23 23 23 24 23 24 24 22 23 24 23 23 23 23 21 22 23 22 23 23 24 22 21 20 22 22 23 23 21 23 "
    "22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 20 22 22 22 23 22 22 23 26 26 20 19 22 23 22 25 26 26 26 27 27 "
    "26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27 27 27 20 24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 "
    "27 26 26 27 27 27 27 27 28 27 27 27 27 27 26 30"
)
"""Number of bits in the Huffman code for each byte and for the end of a string (Appendix B)."""
_END_OF_TEXT: Final = 256
_PADDING_BITS: Final = 7


@lru_cache(_TEXTS_SHARED)
def share(text: str) -> str:
    """Return the same object for equal texts, since clients' tables have many common entries.

    Texts are not interned: some versions of Python never free an interned text, and clients send new ones in each call.
    """
    return text


def _shared(text: str) -> str:
    return share(text) if len(text) <= TABLE_BYTES else text


class HpackError(Exception):
    """A header block is malformed, so the client's and the server's header tables no longer match."""


class _Tree:
    """The Huffman code as a state machine that reads one byte at a time; steps are computed on first use."""

    def __init__(self) -> None:
        lengths = [int(length) for length in _CODE_LENGTHS.split()]
        self._nodes: list[list[int]] = [[0, 0]]
        """The two successors of each inner node: a node, or a symbol as ``-1 - symbol``."""
        self._depths: dict[int, int] = {0: 0}
        self._all_ones: set[int] = {0}
        code = last = 0
        for symbol in sorted(range(len(lengths)), key=lambda symbol: (lengths[symbol], symbol)):
            code <<= lengths[symbol] - last
            last = lengths[symbol]
            self._add(code, last, symbol)
            code += 1
        self._steps: dict[int, tuple[int, bytes]] = {}

    def _add(self, code: int, length: int, symbol: int) -> None:
        node, ones = 0, True
        for at in range(length - 1, 0, -1):
            bit = code >> at & 1
            ones = ones and bit == 1
            following = self._nodes[node][bit]
            if not following:
                following = len(self._nodes)
                self._nodes.append([0, 0])
                self._nodes[node][bit] = following
                self._depths[following] = self._depths[node] + 1
                if ones:
                    self._all_ones.add(following)
            node = following
        self._nodes[node][code & 1] = -1 - symbol

    def decode(self, data: bytes) -> bytes:
        steps = self._steps
        node = 0
        out = []
        for byte in data:
            step = steps.get(node << 8 | byte)
            if step is None:
                step = self._compute_step(node, byte)
            node, text = step
            out.append(text)
        if node not in self._all_ones or self._depths[node] > _PADDING_BITS:
            raise HpackError("a string ends in the middle of a code")
        return b"".join(out)

    def _compute_step(self, begin: int, byte: int) -> tuple[int, bytes]:
        node = begin
        text = bytearray()
        for at in range(7, -1, -1):
            node = self._nodes[node][byte >> at & 1]
            if node < 0:
                symbol = -1 - node
                if symbol == _END_OF_TEXT:
                    raise HpackError("a string contains the end-of-string code")
                text.append(symbol)
                node = 0
        step = self._steps[begin << 8 | byte] = (node, bytes(text))
        return step


_TREE: Final = _Tree()


class HpackDecoder:
    """Decodes the header blocks of one connection, in order.

    :param max_bytes: maximum size of a header list, as RFC 7541 counts it; a larger list is truncated.
    """

    __slots__ = ("_bytes", "_limit", "_max_bytes", "_own")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._own: list[tuple[str, str, int]] = []
        self._bytes = 0
        self._limit = TABLE_BYTES

    def decode(self, block: bytes) -> tuple[dict[str, str], int]:
        """Return a block's headers, with the last value for each name, and the complete list's size.

        :raises HpackError: the block is malformed.
        """
        own = self._own
        headers: dict[str, str] = {}
        size = at = updates = 0
        end = len(block)
        try:
            while at < end:
                first = block[at]
                if first >= 0x80:  # the number of a table entry, rarely above 126
                    at += 1
                    number = first & 0x7F
                    if number == 0x7F:
                        number, at = _number(block, at, 0x7F)
                    elif not number:
                        raise HpackError("a header has the number 0")
                    entry = _STATIC[number] if number < _FIRST_OWN else own[number - _FIRST_OWN]
                elif first >= 0x40:
                    (name, value, length), at = self._literal(block, at, 0x3F)
                    entry = (_shared(name), _shared(value), length)
                    self._add(entry)
                elif first >= 0x20:
                    limit, at = _prefixed(block, at, 0x1F)
                    updates += 1
                    if limit > TABLE_BYTES or headers or updates > _MAX_UPDATES:
                        raise HpackError("invalid table size")
                    self._limit = limit
                    self._shrink()
                    continue
                else:
                    entry, at = self._literal(block, at, 0x0F)
                size += entry[2]
                if size <= self._max_bytes:
                    headers[entry[0]] = entry[1]
                elif size > self._max_bytes * _BOMB_FACTOR:
                    raise HpackError("the headers are much too large")
        except IndexError:
            raise HpackError("the header block is incomplete or refers to a missing entry") from None
        return headers, size

    def _literal(self, block: bytes, at: int, mask: int) -> tuple[tuple[str, str, int], int]:
        number, at = _prefixed(block, at, mask)
        if number:
            name = (_STATIC[number] if number < _FIRST_OWN else self._own[number - _FIRST_OWN])[0]
        else:
            name, at = _text(block, at)
        value, at = _text(block, at)
        return (name, value, len(name) + len(value) + _ENTRY_BYTES), at

    def _add(self, entry: tuple[str, str, int]) -> None:
        self._own.insert(0, entry)
        self._bytes += entry[2]
        if self._bytes > self._limit:
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._limit:
            self._bytes -= self._own.pop()[2]


def _prefixed(block: bytes, at: int, mask: int) -> tuple[int, int]:
    number = block[at] & mask
    at += 1
    return (number, at) if number < mask else _number(block, at, mask)


def _number(block: bytes, at: int, number: int) -> tuple[int, int]:
    """Read the rest of a number that does not fit in its first byte. Return it, and the position after it."""
    for shift in (0, 7, 14, 21):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise HpackError("a number is too large")


def _text(block: bytes, at: int) -> tuple[str, int]:
    first = block[at]
    at += 1
    length = first & 0x7F
    if length == 0x7F:
        length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise HpackError("a string is longer than its header block")
    data = block[at:end]
    return (_TREE.decode(data) if first & 0x80 else data).decode("latin-1"), end


class Decoder(Protocol):
    """Decodes the header blocks of one connection, in order."""

    def decode(self, block: bytes) -> tuple[dict[str, str], int]:
        """See :meth:`HpackDecoder.decode`."""


def new_decoder(max_bytes: int) -> Decoder:
    """Return a decoder, in the compiled core if it is installed; its results are the same."""
    if CORE is None:
        return HpackDecoder(max_bytes)
    decoder: Decoder = CORE.HpackDecoder(max_bytes, HpackError, share)
    return decoder


def encode_headers(*headers: tuple[str, str]) -> bytes:
    """Encode headers as a block of literals without indexing."""
    out = bytearray()
    for name, value in headers:
        out.append(0x00)
        for text in (name.encode("ascii"), value.encode("ascii")):
            length = len(text)
            if length < 0x7F:
                out.append(length)
            else:
                out.append(0x7F)
                length -= 0x7F
                while length >= 0x80:
                    out.append(length & 0x7F | 0x80)
                    length >>= 7
                out.append(length)
            out += text
    return bytes(out)
