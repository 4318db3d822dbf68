"""Permission checks for stored messages that requests identify by offset instead of topic.

For a message that the account may not access, the response is the same as for a missing message. A producer may write
the bytes of a record into a message's body, so a record is valid only if its queue points to it.
"""

from __future__ import annotations

from cometmq.message.names import NOT_ALLOWED_SEND_TOPICS
from cometmq.message.properties import REAL_TOPIC
from cometmq.message.record import StoredRecord
from cometmq.remoting.permissions import CALLER, Action, Caller, on_topic
from cometmq.store.message_store import MessageStore


def may_access(store: MessageStore, record: StoredRecord | None, *actions: Action) -> bool:
    """Return whether the current request may access a message in the log."""
    caller = CALLER.get()
    if caller is None or caller.is_super:
        return True
    return record is not None and _is_queued(store, record) and caller.may(on_topic(_topic(record), *actions))


def may_access_at(store: MessageStore, offset: int, *actions: Action) -> bool:
    """Return whether the current request may access the message at a log offset."""
    caller = CALLER.get()
    return caller is None or caller.is_super or may_access(store, store.decoded_at(offset), *actions)


def may_access_archived(caller: Caller | None, record: StoredRecord, actions: tuple[Action, ...]) -> bool:
    """Return whether the account of a request may access an archived message.

    Its queue need not be checked, because archived messages were read through their queues.
    """
    return caller is None or caller.is_super or caller.may(on_topic(_topic(record), *actions))


def _topic(record: StoredRecord) -> str:
    """Return the topic of a message; for a delayed or half message, the topic to which it will be delivered."""
    parked = record.topic in NOT_ALLOWED_SEND_TOPICS
    return record.properties.get(REAL_TOPIC, record.topic) if parked else record.topic


def _is_queued(store: MessageStore, record: StoredRecord) -> bool:
    queue = store.queues().get(record.topic, {}).get(record.queue_id)
    unit = None if queue is None else queue.unit(record.queue_offset)
    return unit is not None and unit[0] == record.physical_offset


def not_found(remark: str) -> str:
    """Return the error text for a message that is missing or that the account may not access."""
    caller = CALLER.get()
    if caller is None or caller.is_super:
        return remark
    return f"{remark}, or this account has no permission for its topic"
