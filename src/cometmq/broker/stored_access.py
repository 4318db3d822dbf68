"""Permissions for stored messages that requests name by their offset instead of their topic.

Nobody learns whether a message exists that the account may not use: both get the answer of a message that does not. A
producer may write the bytes of a record into a message's body; so only a record that its queue points to counts.
"""

from __future__ import annotations

from cometmq.message.names import NOT_ALLOWED_SEND_TOPICS
from cometmq.message.properties import REAL_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.permissions import CALLER, Action, on_topic
from cometmq.store.message_store import MessageStore


def may_use(store: MessageStore, record: StoredRecord | None, *actions: Action) -> bool:
    """Tell whether the request that is being handled may do one of these with a message of the log."""
    caller = CALLER.get()
    if caller is None or caller.is_super:
        return True
    return record is not None and _is_queued(store, record) and caller.may(on_topic(_topic(record), *actions))


def may_use_at(store: MessageStore, offset: int, *actions: Action) -> bool:
    """The same for the message at an offset of the log, which is decoded only where permissions are checked."""
    caller = CALLER.get()
    return caller is None or caller.is_super or may_use(store, store.decoded_at(offset), *actions)


def _topic(record: StoredRecord) -> str:
    """The topic of a message; a waiting message has the topic that it waits for."""
    parked = record.topic in NOT_ALLOWED_SEND_TOPICS
    return record.properties.get(REAL_TOPIC, record.topic) if parked else record.topic


def _is_queued(store: MessageStore, record: StoredRecord) -> bool:
    queue = store.queues().get(record.topic, {}).get(record.queue_id)
    unit = None if queue is None else queue.unit(record.queue_offset)
    return unit is not None and unit[0] == record.physical_offset


def not_found(remark: str) -> str:
    """The words for a message that is not there, or not for the account."""
    caller = CALLER.get()
    if caller is None or caller.is_super:
        return remark
    return f"{remark}, or this account has no permission for its topic"
