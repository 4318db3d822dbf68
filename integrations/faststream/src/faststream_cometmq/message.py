"""Received messages, and how raw messages become FastStream's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from faststream._internal.basic_types import DecodedMessage
from faststream.message import StreamMessage, decode_message

from cometmq.message import properties as names
from cometmq.message.compression import DecompressionError
from cometmq.message.message import MessageExt
from cometmq.message.sysflag import COMPRESSED

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"
EMPTY_BODY: Final = "empty_body"
"""The property of a message that has a byte because RocketMQ refuses messages without a body."""
_OWN: Final = names.RESERVED_NAMES | {
    value for name, value in vars(names).items() if name.isupper() and isinstance(value, str)
}
"""The properties of RocketMQ itself, which are no headers."""

Raw = MessageExt | tuple[MessageExt, ...]
"""One message, or a batch."""


class Settlement(Protocol):
    """Says to the broker what became of messages."""

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """The group has consumed the messages."""

    async def nack(self, messages: Sequence[MessageExt], delay: float | None) -> None:
        """The group receives the messages again after ``delay`` seconds, by default as configured."""

    async def reject(self, messages: Sequence[MessageExt]) -> None:
        """The messages are dead letters."""


class Unsettled:
    """The settlement of replies, and of messages in tests without a broker: nobody waits for it."""

    async def ack(self, messages: Sequence[MessageExt]) -> None:
        """Do nothing."""

    async def nack(self, messages: Sequence[MessageExt], delay: float | None) -> None:
        """Do nothing."""

    async def reject(self, messages: Sequence[MessageExt]) -> None:
        """Do nothing."""


class RocketMQMessage(StreamMessage[Raw]):
    """A received message; ``raw_message`` is the client's, or a tuple of them in a batch."""

    def __init__(self, *args: Any, settlement: Settlement, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._settlement = settlement

    @property
    def messages(self) -> tuple[MessageExt, ...]:
        """The client's messages, also of a message that is no batch."""
        return self.raw_message if isinstance(self.raw_message, tuple) else (self.raw_message,)

    @property
    def delivery_attempt(self) -> int:
        """The number of deliveries up to this one, starting at 1; the largest of a batch."""
        return max(message.reconsume_times for message in self.messages) + 1

    async def ack(self) -> None:
        """Acknowledge the message; a second settlement does nothing.

        :raises CometMQError: the broker refuses, or does not answer.
        """
        if self.committed is None:
            await self._settlement.ack(self.messages)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Let the group receive the message again.

        :param delay: seconds until then, up to three days; by default as the subscriber says.
        :raises ValueError: the delay is out of its range.
        :raises CometMQError: the broker refuses, or does not answer.
        """
        if self.committed is None:
            await self._settlement.nack(self.messages, delay)
        await super().nack()

    async def reject(self) -> None:
        """Make the message a dead letter.

        :raises CometMQError: the broker refuses, or does not answer.
        """
        if self.committed is None:
            await self._settlement.reject(self.messages)
        await super().reject()


class RocketMQParser:
    """Makes FastStream's messages of raw ones."""

    def __init__(self) -> None:
        self.settlement: Settlement = Unsettled()

    async def parse_message(self, message: MessageExt) -> RocketMQMessage:
        """Return FastStream's message."""
        return RocketMQMessage(
            raw_message=message,
            body=body_of(message),
            settlement=self.settlement,
            message_id=message.msg_id,
            **_told(message),
        )

    async def parse_batch(self, messages: tuple[MessageExt, ...]) -> RocketMQMessage:
        """Return FastStream's message of a batch; its headers are those of the first message."""
        return RocketMQMessage(
            raw_message=messages,
            body=[body_of(one) for one in messages],
            batch_headers=[headers_of(one) for one in messages],
            settlement=self.settlement,
            message_id=f"{messages[0].msg_id}-{len(messages)}",
            **_told(messages[0]),
        )

    async def decode_message(self, message: StreamMessage[Any]) -> DecodedMessage:
        """Return the body as its content type says."""
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[DecodedMessage]:
        """Return the bodies of a batch."""
        rows = []
        for raw, body in zip(message.raw_message, message.body, strict=True):
            one = StreamMessage(raw, body, content_type=raw.properties.get(CONTENT_TYPE))
            rows.append(decode_message(one))
        return rows


def body_of(message: MessageExt) -> bytes:
    """Return a message's body."""
    return b"" if EMPTY_BODY in message.properties else message.body


def is_damaged(message: MessageExt) -> bool:
    """Return whether a message says that its body is compressed, but nobody can decompress it."""
    if not message.sys_flag & COMPRESSED:
        return False
    try:
        body_of(message)
    except DecompressionError:
        return True
    return False


def headers_of(message: MessageExt) -> dict[str, str]:
    """Return the properties that are not RocketMQ's own."""
    return {name: value for name, value in message.properties.items() if name not in _OWN and name != EMPTY_BODY}


def _told(message: MessageExt) -> dict[str, Any]:
    """Return what a message's properties say to FastStream."""
    properties: Mapping[str, str] = message.properties
    return {
        "headers": headers_of(message),
        "content_type": properties.get(CONTENT_TYPE),
        "reply_to": properties.get(REPLY_TO) or properties.get(names.REPLY_TO_CLIENT, ""),
        "correlation_id": properties.get(CORRELATION_ID) or properties.get(names.CORRELATION_ID),
    }
