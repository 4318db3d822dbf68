"""Transaction ids that contain the half message's position, so that any endpoint can end the transaction.

Apache's proxy keeps the position in memory. After a crash of the proxy the transaction ends only after a check.
"""

from __future__ import annotations

from typing import NamedTuple

from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code


class TransactionId(NamedTuple):
    """A half message's position."""

    broker: str
    queue_offset: int
    log_offset: int
    message_id: str

    def encode(self) -> str:
        """Return the id as text, with the broker's name last because it may contain any character."""
        return f"{self.message_id}-{self.queue_offset:x}-{self.log_offset:x}-{self.broker}"

    @classmethod
    def decode(cls, text: str, message_id: str) -> TransactionId:
        """Parse an id.

        :raises ProxyError: the id is malformed, or belongs to another message.
        """
        rest = text.removeprefix(f"{message_id}-")
        parts = rest.split("-", 2)
        try:
            if rest == text:
                raise ValueError
            return cls(parts[2], int(parts[0], 16), int(parts[1], 16), message_id)
        except (IndexError, ValueError):
            raise ProxyError(
                Code.INVALID_TRANSACTION_ID, f"{text[:200]!r} is not the transaction id of {message_id[:100]!r}"
            ) from None
