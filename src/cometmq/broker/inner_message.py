"""A message that the broker itself stores (``MessageExtBrokerInner``): parked, delivered, sent back, marked.

What a client sends is stored straight from its request (:mod:`cometmq.broker.send`). Everything that
takes a detour goes through this form: a delayed message on its way in and out, half and op messages,
retries and dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from cometmq.message.record import StoredRecord


class InnerMessage(msgspec.Struct, frozen=True, gc=False):
    """One message as it is to be stored; offsets, store time and store host come when it is.

    ``msgspec.structs.replace`` gives a copy with other values.
    """

    topic: str
    queue_id: int
    body: bytes
    """As stored: still packed where ``sys_flag`` says so."""
    properties: str
    """The properties' text, stored exactly as it is."""
    flag: int
    sys_flag: int
    """The bits of the hosts are set when it is stored."""
    born_timestamp: int
    """Milliseconds since 1970, by the producer's clock."""
    born_host: bytes
    """8 or 20 bytes."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Where an inner message stands in the log and in its queue (0 for records that have no place there)."""

    physical_offset: int
    queue_offset: int


Detour = Callable[[InnerMessage, Mapping[str, str]], InnerMessage | None]
"""Decides from a sent message and its detour properties whether it is parked elsewhere first.

Returns the message to store instead, addressed to the topic where it waits; ``None`` when the message
takes no detour. Raises ``SendRefusedError`` when what the properties ask for cannot be done.
"""


def inner_message(record: StoredRecord) -> InnerMessage:
    """The message of a stored record, to be stored once more."""
    return InnerMessage(
        record.topic,
        record.queue_id,
        record.body,
        record.properties_text,
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        record.reconsume_times,
        record.prepared_transaction_offset,
    )
