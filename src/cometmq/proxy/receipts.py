"""Receipt handles of gRPC: those of POP with the log offset of the message behind (``ReceiptHandle``)."""

from __future__ import annotations

from typing import NamedTuple

from cometmq.message.pop_info import HandleError, ReceiptHandle, parse_handle, real_topic
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code

_POP_PARTS = 8


class Receipt(NamedTuple):
    """One delivery of one message."""

    handle: ReceiptHandle
    log_offset: int
    """Offset of the message in the log of its broker."""

    @property
    def ends_ms(self) -> int:
        """When the message becomes visible again, in milliseconds since 1970."""
        return self.handle.pop_time + self.handle.invisible_time

    def encode(self) -> str:
        """The text for the client."""
        return f"{self.handle.encode()} {self.log_offset}"

    def popped_from(self, topic: str, group: str) -> str:
        """The topic that the message was taken from: the client's, or a retry topic of its group."""
        return real_topic(topic, group, self.handle.topic_type)

    def changed(self, pop_time: int, invisible_time: int, revive_queue: int) -> Receipt:
        """The receipt after a change of its time."""
        handle = self.handle._replace(
            start_offset=self.handle.queue_offset,
            pop_time=pop_time,
            invisible_time=invisible_time,
            revive_queue=revive_queue,
        )
        return Receipt(handle, self.log_offset)


def read_receipt(text: str) -> Receipt:
    """Read the handle of a client.

    :raises ProxyError: it is none.
    """
    try:
        handle = parse_handle(text)
    except HandleError as error:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, f"receipt handle is invalid: {error.message}") from error
    parts = text.split(" ")
    last = parts[_POP_PARTS] if len(parts) > _POP_PARTS else ""
    return Receipt(handle, int(last) if last.isascii() and last.isdigit() and len(last) < 20 else 0)


def live_receipt(text: str, now_ms: int) -> Receipt:
    """Read the handle of a message that must still be invisible.

    :raises ProxyError: it is none, or its time is over.
    """
    receipt = read_receipt(text)
    if receipt.ends_ms <= now_ms:
        raise ProxyError(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
    return receipt
