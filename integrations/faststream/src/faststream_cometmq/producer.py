"""Publishes commands."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fast_depends.library.serializer import SerializerProto
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import AsyncCallable, CustomCallable
from faststream.exceptions import IncorrectState, SetupError

from cometmq.client import Message, Producer, RequestTimeoutError, SendResult, TransactionProducer
from cometmq.client.producer.transaction_producer import TransactionSendResult
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.properties import SHARDING_KEY
from faststream_cometmq.message import CONTENT_TYPE, CORRELATION_ID, EMPTY_BODY, REPLY_TO, RocketMQParser
from faststream_cometmq.options import SendOptions
from faststream_cometmq.response import RocketMQPublishCommand

log = logging.getLogger(__name__)


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends the messages of a broker and its publishers."""

    _parser: AsyncCallable
    _decoder: AsyncCallable

    def __init__(self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None) -> None:
        default = RocketMQParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: Producer | None = None

    def connect(self, client: Producer | None, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        """Use a client of this broker; ``None`` ends its use."""
        self._client = client
        self.serializer = serializer
        self.codec = codec or DefaultCodec()

    @property
    def client(self) -> Producer:
        """The client.

        :raises IncorrectState: the broker is not connected.
        """
        if self._client is None:
            raise IncorrectState("the broker is not connected: await broker.connect() first")
        return self._client

    async def message(self, cmd: RocketMQPublishCommand) -> Message:
        """Return the message of a command."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        return message_of(cmd, body, content_type, cmd.headers, cmd.options, cmd.correlation_id)

    async def messages(self, cmd: RocketMQPublishCommand) -> list[Message]:
        """Return the messages of a command with a batch."""
        rows = cmd.rows()
        bodies = [body for body, *_ in rows]
        if isinstance(self.codec, BatchCodecProto):
            encoded = await self.codec.encode_batch(bodies, self.serializer)
        else:
            encoded = [await self.codec.encode(body, self.serializer) for body in bodies]
        return [
            message_of(cmd, body, content_type, headers, options, correlation_id)
            for (body, content_type), (_, headers, options, correlation_id) in zip(encoded, rows, strict=True)
        ]

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult | None:
        """Send a message, do the transaction, or answer a request.

        :raises CometMQError: the message was not sent; a reply that nobody waits for is only logged.
        """
        message = await self.message(cmd)
        if cmd.request is not None:
            return await self._reply(cmd.request, message)
        group = cmd.options.get("message_group")
        if cmd.work is not None:
            return await self._transaction(message, cmd, group)
        return await self.client.send(message, sharding_key=group)

    async def _reply(self, request: MessageExt, message: Message) -> SendResult | None:
        try:
            return await self.client.reply(request, message.body, properties=message.properties)
        except CometMQError as error:
            log.warning("the reply to %s did not arrive: %s", request.msg_id, error)
            return None

    async def _transaction(
        self, message: Message, cmd: RocketMQPublishCommand, group: str | None
    ) -> TransactionSendResult:
        if not isinstance(self.client, TransactionProducer) or cmd.work is None:
            raise SetupError("pass check= to RocketMQBroker: it answers the broker's questions about transactions")
        return await self.client.send_in_transaction(message, cmd.work, sharding_key=group)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> Sequence[SendResult]:
        """Send messages in as few requests as possible; those of one FIFO group keep their order.

        :raises PartlySentError: some messages were not sent.
        """
        messages = await self.messages(cmd)
        groups = {message.properties.get(SHARDING_KEY) for message in messages}
        if len(groups) <= 1:
            return await self.client.send_batch(messages, sharding_key=groups.pop() if groups else None)
        return [
            await self.client.send(message, sharding_key=message.properties.get(SHARDING_KEY)) for message in messages
        ]

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        """Send a request, and return its reply.

        :raises TimeoutError: no reply came in time.
        :raises CometMQError: the request was not sent.
        """
        message = await self.message(cmd)
        group = cmd.options.get("message_group")
        try:
            return await self.client.request(message, sharding_key=group, timeout_s=cmd.timeout)
        except RequestTimeoutError as error:
            raise TimeoutError(str(error)) from error


def message_of(
    cmd: RocketMQPublishCommand,
    body: bytes,
    content_type: str | None,
    headers: dict[str, Any],
    options: SendOptions,
    correlation_id: str | None,
) -> Message:
    """Return the client's message. RocketMQ keeps neither an empty body nor an empty property."""
    own = {CONTENT_TYPE: content_type, CORRELATION_ID: correlation_id, REPLY_TO: cmd.reply_to}
    properties = {name: str(value) for name, value in {**own, **headers}.items() if value not in (None, "")}
    rest: dict[str, Any] = dict(options)
    if group := rest.pop("message_group", None):
        properties[SHARDING_KEY] = group
    if not body:
        properties[EMPTY_BODY] = "true"
    return Message(cmd.destination, body or b"\0", properties=properties, **rest)
