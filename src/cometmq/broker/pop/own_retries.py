"""Filter for a group's own messages in a retry topic.

``%RETRY%a_b_c`` belongs to group ``a`` with topic ``b_c``, and to group ``a_b`` with topic ``c``. Each copy contains
its group in ORIGIN_GROUP, as Apache's broker 5.5 writes it; an older copy without this property is delivered to both
groups.
"""

from __future__ import annotations

import struct
from typing import Final

from cometmq.broker.pull.filters import MessageFilter
from cometmq.filter.records import properties_of, property_reader
from cometmq.message.pop_info import is_retry_of
from cometmq.message.properties import ORIGIN_GROUP
from cometmq.message.record import RecordError

_read_group: Final = property_reader(ORIGIN_GROUP)


def own_retries(wanted: MessageFilter, topic: str, group: str) -> MessageFilter:
    """Return a filter for a group's pops from a retry topic, which rejects copies that belong to other groups."""

    def is_own(record: memoryview) -> bool:
        try:
            origin = _read_group(properties_of(record))
        except (RecordError, struct.error):
            origin = None
        if origin is not None and origin != group and is_retry_of(topic, origin):
            return False
        return wanted.predicate is None or wanted.predicate(record)

    return MessageFilter(codes=wanted.codes, predicate=is_own)
