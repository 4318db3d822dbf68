"""Determines the numbers of slots and entries in an index file. The file's length alone does not determine them.

The header has the number of entries and the log offset of the last entry. The position of that offset in the file,
minus the length of all entries, is the end of the slot table. The result is valid only if slots and entries then match.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cometmq.message.layout import INDEX_ENTRY
from cometmq.store.disk import open_file
from cometmq.store.index.index_file import ENTRY, ENTRY_BYTES, HEADER, HEADER_BYTES
from cometmq.store.log.mapped_file import data_part, find_bytes, first_data

_SLOT_BYTES = 4
_OFFSET_IN_ENTRY = INDEX_ENTRY.offsets["offset"]


def read_index_sizes(path: Path) -> tuple[int, int] | None:
    """Return the numbers of slots and entries in an index file, or ``None`` if it is empty or damaged."""
    size = path.stat().st_size
    if size < HEADER_BYTES + _SLOT_BYTES + 2 * ENTRY_BYTES:
        return None
    with open_file(path, os.O_RDONLY) as fd, mmap.mmap(fd, size, prot=mmap.PROT_READ) as content:
        _, _, _, last_offset, _, count = HEADER.unpack_from(content)
        if last_offset <= 0 or count < 2:
            return None
        for place in _places(fd, content, last_offset.to_bytes(8, "big")):
            table_bytes = place - _OFFSET_IN_ENTRY - (count - 1) * ENTRY_BYTES - HEADER_BYTES
            entries, rest = divmod(size - HEADER_BYTES - table_bytes, ENTRY_BYTES)
            if table_bytes < _SLOT_BYTES or table_bytes % _SLOT_BYTES or rest or entries < count:
                continue
            slots = table_bytes // _SLOT_BYTES
            if _slots_match_entries(content, slots, count):
                return slots, entries
    return None


def _places(fd: int, content: mmap.mmap, wanted: bytes) -> Iterator[int]:
    """Yield the positions of a byte string in a file. Space that was never written is not read."""
    at = HEADER_BYTES
    while (at := first_data(fd, at, len(content))) < len(content):
        _, hole = data_part(fd, at, len(content)) or (at, len(content))
        at = max(HEADER_BYTES, at - len(wanted) + 1)
        while (at := find_bytes(content, wanted, at, hole)) >= 0:
            yield at
            at += 1
        at = hole


def _slots_match_entries(content: mmap.mmap, slots: int, count: int) -> bool:
    """Return whether each slot points to the last entry of its chain and the entries are in log order."""
    table = np.frombuffer(bytes(content[HEADER_BYTES : HEADER_BYTES + slots * _SLOT_BYTES]), ">i4")
    begin = HEADER_BYTES + slots * _SLOT_BYTES + ENTRY_BYTES
    entries = np.frombuffer(content[begin : begin + (count - 1) * ENTRY_BYTES], ENTRY)
    heads = table[entries["hash"].astype(np.int64) % slots].astype(np.int64)
    offsets = entries["offset"].astype(np.int64)
    return bool((heads >= np.arange(1, count)).all() and (heads < count).all() and (offsets[1:] >= offsets[:-1]).all())
