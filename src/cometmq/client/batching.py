"""Cuts a list of messages into batches that brokers accept (``MessageBatch``).

One batch has one topic and one ``wait_store_msg_ok``, no delay, no retry topic, and a body within the
limit. Messages that may not be in a batch go alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cometmq.client.send_encoding import is_batchable
from cometmq.limits import MAX_BATCH_MESSAGES
from cometmq.message.message import Message


def split_batches(messages: Sequence[Message], max_bytes: int, size_of: Callable[[Message], int]) -> list[list[int]]:
    """Positions of the messages of each batch; within a topic they stay in order.

    ``size_of`` gives the bytes that a message takes in a batch.
    """
    batches: list[list[int]] = []
    open_batches: dict[tuple[str, bool], tuple[list[int], int]] = {}
    for position, message in enumerate(messages):
        if not is_batchable(message):
            batches.append([position])
            continue
        kind = (message.topic, message.wait_store_msg_ok)
        size = size_of(message)
        batch, filled = open_batches.get(kind, ([], 0))
        if not batch or filled + size > max_bytes or len(batch) >= MAX_BATCH_MESSAGES:
            batch, filled = [], 0
            batches.append(batch)
        batch.append(position)
        open_batches[kind] = (batch, filled + size)
    return batches
