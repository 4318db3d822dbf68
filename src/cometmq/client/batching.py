"""Cuts a list of messages into batches that brokers accept (``MessageBatch``).

One batch has one topic and one ``wait_store_msg_ok``, no delay, no timer, no retry topic, and a body within
the limit. Messages that may not be in a batch, or fill one alone, go alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from cometmq.client.send_encoding import is_batchable
from cometmq.limits import MAX_BATCH_MESSAGES
from cometmq.message.message import Message


def split_batches(messages: Sequence[Message], max_bytes: int, sizes: Sequence[int]) -> list[list[int]]:
    """Positions of the messages of each batch; within a topic they stay in order.

    :param sizes: the bytes that each message takes in a batch.
    """
    batches: list[list[int]] = []
    kinds: dict[tuple[str, bool], _Open] = {}
    opened = _Open("", True)
    for position, message in enumerate(messages):
        if (
            message.topic != opened.topic
            or message.wait_store_msg_ok != opened.wait
            or message.is_delayed
            or message.properties
        ):
            if not is_batchable(message):
                batches.append([position])
                continue
            kind = (message.topic, message.wait_store_msg_ok)
            opened = kinds.get(kind) or kinds.setdefault(kind, _Open(*kind))
        size = sizes[position]
        batch = opened.batch
        if not batch or opened.filled_bytes + size > max_bytes or len(batch) >= MAX_BATCH_MESSAGES:
            batch = opened.batch = []
            opened.filled_bytes = 0
            batches.append(batch)
        batch.append(position)
        opened.filled_bytes += size
    return batches


class _Open:
    """The batch of one kind that still takes messages."""

    __slots__ = ("batch", "filled_bytes", "topic", "wait")

    def __init__(self, topic: str, wait: bool) -> None:
        self.topic = topic
        self.wait = wait
        self.batch: list[int] = []
        self.filled_bytes = 0
