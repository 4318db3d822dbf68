"""RecallHandle: what an answer to a send gives for taking the message back while it waits (``RecallMessageHandle``).

URL-safe base64 of ``v1 <topic> <brokerName> <due time + 1> <unique key>``.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, Self

import msgspec

from cometmq.errors import CometMQError
from cometmq.limits import MAX_RECALL_HANDLE_CHARS

_VERSION: Final = "v1"
_PARTS: Final = 5


class RecallHandleError(CometMQError):
    """A text that is no handle."""


class RecallHandle(msgspec.Struct, frozen=True):
    """One message that waits."""

    topic: str
    broker_name: str
    due_ms: int
    unique_key: str

    def encode(self) -> str:
        """The text."""
        # RocketMQ's broker, whose times are whole seconds, adds one so that rounding down finds the same second.
        text = f"{_VERSION} {self.topic} {self.broker_name} {self.due_ms + 1} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read a text.

        :raises RecallHandleError: it is no handle.
        """
        try:
            if len(text) > MAX_RECALL_HANDLE_CHARS:
                raise ValueError(f"more than {MAX_RECALL_HANDLE_CHARS} characters")
            raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
            parts = raw.decode().split(" ")
            if len(parts) != _PARTS or parts[0] != _VERSION:
                raise ValueError(f"not {_VERSION} with {_PARTS} parts")
            _, topic, broker_name, due_ms, unique_key = parts
            if not (due_ms.isascii() and due_ms.isdigit() and len(due_ms) < 19):
                raise ValueError("no time in it")
        except (ValueError, binascii.Error, UnicodeError) as error:
            raise RecallHandleError(
                f"recall handle is invalid: {error}", next_step="give the handle that the send answered"
            ) from error
        return cls(topic, broker_name, int(due_ms) - 1, unique_key)
