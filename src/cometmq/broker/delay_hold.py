"""Messages of delay levels outlive their log file: they move into the timer before retention deletes it.

A message of a level waits in the log alone. Apache deletes its file when the time of the file is over, or when the
disk is full, and the message vanishes. Here retention asks first. A master then stores what waits in the file once
more, as a message of any delay that is due at the same moment (:mod:`cometmq.broker.timer`), which has a log of its
own; the level goes on behind it, and the next look of retention finds the file free. A slave cannot store anything:
it keeps the file until its master says that the messages are delivered, or have moved.

Only progress that is in the files counts: what a power cut could take back still needs its log file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from cometmq.broker.delay_offsets import DelayOffsets
from cometmq.broker.inner_message import InnerMessage
from cometmq.broker.timer_detour import parked
from cometmq.limits import MAX_PROPERTIES_BYTES
from cometmq.message.names import SCHEDULE_TOPIC
from cometmq.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_OUT_MS,
    decode_properties,
    join_properties,
)
from cometmq.store.message_store import MessageStore

_OF_WAITING: Final = (REAL_TOPIC, REAL_QID, TIMER_OUT_MS, TIMER_DEL_UNIQKEY)
"""Properties that say how a message waits: those of a wait before this one mean nothing any more."""


class DelayHold:
    """Says from where on the messages of delay levels need the log (:class:`cometmq.store.retention.LogHolder`).

    :param move: is asked to move what waits below a log offset; returns at once.
    """

    name = "messages of delay levels"

    def __init__(self, store: MessageStore, files: DelayOffsets, move: Callable[[int], None]) -> None:
        self._store = store
        self._files = files
        self.let_go = move

    def needed_from(self) -> int:
        """Log offset of the first message that is not delivered, by the files; the log's end when none waits."""
        progress, _ = self._files.load()
        needed = self._store.max_physical_offset
        for queue_id, queue in self._store.queues().get(SCHEDULE_TOPIC, {}).items():
            unit = queue.unit(max(progress.offsets.get(queue_id + 1, 0), queue.min_offset()))
            if unit is not None:
                needed = min(needed, unit[0])
        return needed


def moved(message: InnerMessage, due_ms: int) -> InnerMessage:
    """A message of a level as it waits in the timer; as it is delivered, when its properties have no room for that.

    :param message: as it would be delivered.
    """
    properties = decode_properties(message.properties)
    for name in _OF_WAITING:
        properties.pop(name, None)
    waits = parked(msgspec.structs.replace(message, properties=join_properties(properties)), due_ms)
    return waits if len(waits.properties.encode()) <= MAX_PROPERTIES_BYTES else message
