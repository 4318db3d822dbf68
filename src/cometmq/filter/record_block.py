"""Extracts the properties of many stored records in a log file at once, with array operations.

A record is regular if its lengths are consistent and it has no unusually large properties. The encoded properties of
each regular record are copied into a row of :class:`~cometmq.filter.property_rows.PropertyRows`. Bodies are not read.
Irregular records are read one by one elsewhere.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cometmq.filter.block_numbers import Bools, Bytes, Ints
from cometmq.filter.property_rows import MARGIN, SEPARATOR, PropertyRows, copies
from cometmq.message.layout import (
    BODY_AT,
    BODY_LENGTH_BYTES,
    HOSTS_V6,
    PROPERTIES_LENGTH_BYTES,
    RECORD,
    TOPIC_LENGTH_BYTES,
)
from cometmq.message.record import MESSAGE_MAGIC
from cometmq.message.record_arrays import dtype_of, offsets_of

_HEAD: Final = dtype_of(RECORD, "magic", "physical_offset", "sys_flag", "body_length")
_SAMPLE: Final = 20
WIDEST_PROPERTIES: Final = 4_096
"""Maximum size of the properties in a row; records with larger properties are read one by one."""


class RecordBlock:
    """The properties of the regular records among some records.

    :param view: a log file.
    :param base: the log offset of its first byte.
    :param at: the position in ``view`` of each record.
    :param sizes: the size of each record, at least the minimum; ``view`` contains all of it.
    :param topic_bytes: the length of the topic's name.
    :param most_bytes: maximum size of all rows together; one row is always copied.
    """

    def __init__(self, view: memoryview, base: int, at: Ints, sizes: Ints, topic_bytes: int, most_bytes: int) -> None:
        heads = copies(view, at, _HEAD.itemsize).view(_HEAD)
        ends = at + sizes
        # A negative body length means a body that is too long.
        begin = at + heads["body_length"].view(">u4") + RECORD.size
        flags = heads["sys_flag"]
        if (flags & HOSTS_V6).any():
            begin = _begin_behind_hosts(view, at, flags)
        before = TOPIC_LENGTH_BYTES + topic_bytes + PROPERTIES_LENGTH_BYTES
        lengths = ends - begin - before
        regular: Bools = (heads["magic"] == MESSAGE_MAGIC) & (heads["physical_offset"] == at + base) & (lengths >= 0)
        widest = _widest(lengths[regular])
        width = before + widest + MARGIN
        regular &= (lengths <= widest) & (begin + width <= len(view))
        room = max(most_bytes // width, 1)
        if room < len(at):
            regular, begin, lengths = regular[:room], begin[:room], lengths[:room]
        if not regular.all():
            begin, lengths = begin[regular], lengths[regular]
        data = copies(view, begin, width).view(np.uint8)
        rows = data.reshape(-1, width)
        said = rows[:, before - 2].astype(np.int64) << 8 | rows[:, before - 1]
        agreed = (rows[:, 0] == topic_bytes) & (said == lengths)
        if not agreed.all():
            regular[regular] = agreed
            lengths, rows = lengths[agreed], rows[agreed]
            data = rows.reshape(-1)
        self.regular = regular
        """For each record within the limit, whether it has a row."""
        self.rows = _text_rows(data, rows, before, lengths)


def _text_rows(data: Bytes, rows: Bytes, before: int, lengths: Ints) -> PropertyRows:
    """Write separators at the beginning and end of each text."""
    width = rows.shape[1]
    rows[:, : before - 1] = 0
    rows[:, before - 1] = SEPARATOR
    ends = np.arange(before, len(data) + before, width) + lengths
    data[ends] = SEPARATOR
    return PropertyRows(data, width, ends)


def _begin_behind_hosts(view: memoryview, at: Ints, flags: Ints) -> Ints:
    """Return the positions of the topics if some hosts are IPv6."""
    body_at = np.minimum(at + offsets_of(BODY_AT, flags), len(view))
    begin: Ints = body_at + copies(view, body_at - BODY_LENGTH_BYTES, BODY_LENGTH_BYTES).view(">u4")
    return begin


def _widest(lengths: Ints) -> int:
    """Choose the maximum length of a row's text, so that a few large records do not widen all rows."""
    if not len(lengths):
        return 0
    longest = int(lengths.max())
    if longest > 2 * int(lengths.min()) + 64:
        longest = min(longest, 2 * _usual(lengths) + 64)
    return min(longest, WIDEST_PROPERTIES)


def _usual(lengths: Ints) -> int:
    """Estimate the median from a sample."""
    some = sorted(lengths[:: len(lengths) // _SAMPLE + 1].tolist())
    return int(some[len(some) // 2])
