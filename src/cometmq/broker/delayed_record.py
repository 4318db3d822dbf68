"""A parked record as it is delivered (``ScheduleMessageService.messageTimeup``; hot path).

Topic and queue come from REAL_TOPIC and REAL_QID; everything else stays as it is, the properties to the
byte: DELAY, REAL_TOPIC and REAL_QID are still among them. Only the topic, the queue, the offsets, the store
time and the store host are new, and the prepared transaction offset is 0.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.inner_message import InnerMessage
from cometmq.message.names import TRANS_HALF_TOPIC, check_topic
from cometmq.message.properties import REAL_QID, REAL_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.store.load import MAX_QUEUE_ID

_REAL_TOPIC: Final = f"\x02{REAL_TOPIC}\x01"
_REAL_QID: Final = f"\x02{REAL_QID}\x01"


class NotDeliverableError(Exception):
    """A parked record that says no place to deliver it to."""


def delivered(record: StoredRecord) -> InnerMessage | None:
    """The message to store; ``None`` for a half message, which is dropped as in Apache.

    :raises NotDeliverableError: REAL_TOPIC or REAL_QID is missing or cannot be one.
    """
    text = "\x02" + record.properties_text
    topic = _value(text, _REAL_TOPIC)
    queue_id = _value(text, _REAL_QID)
    wrong = check_topic(topic)
    if wrong is not None:
        raise NotDeliverableError(f"REAL_TOPIC: {wrong}")
    if not queue_id.isdecimal() or len(queue_id) > len(str(MAX_QUEUE_ID)) or int(queue_id) > MAX_QUEUE_ID:
        raise NotDeliverableError(f"{queue_id[:20]!r} is not a queue's id")
    if topic == TRANS_HALF_TOPIC:
        return None
    return InnerMessage(
        topic,
        int(queue_id),
        record.body,
        record.properties_text,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
    )


def _value(text: str, name: str) -> str:
    """The value of a property in a text that begins with a separator; the last one counts where it stands twice."""
    at = text.rfind(name)
    if at < 0:
        return ""
    begin = at + len(name)
    end = text.find("\x02", begin)
    return text[begin:] if end < 0 else text[begin:end]
