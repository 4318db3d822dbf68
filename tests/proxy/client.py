"""A client of ``MessagingService`` on gRPC's own library, as free as a test needs it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from cometmq.proxy.converter import duration
from cometmq.proxy.protocol import v2

SERVICE = "/apache.rocketmq.v2.MessagingService/"
_ids = itertools.count(1)


class Client:
    """One client id on one channel."""

    def __init__(self, channel: grpc.aio.Channel, *, metadata: Sequence[tuple[str, str]] | None = None) -> None:
        self.channel = channel
        self.client_id = f"test@{next(_ids)}"
        self.metadata = (
            (("x-mq-client-id", self.client_id), ("x-mq-language", "PYTHON")) if metadata is None else tuple(metadata)
        )

    async def ask(self, name: str, request: Any, *, timeout: float = 20.0) -> Any:
        """Make a call with one answer."""
        call = self.channel.unary_unary(
            SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(v2, f"{name}Response").FromString,
        )
        return await call(request, metadata=self.metadata, timeout=timeout)

    async def receive(self, request: v2.ReceiveMessageRequest, *, timeout: float = 25.0) -> list[Any]:
        """All answers of ReceiveMessage."""
        call = self.channel.unary_stream(
            f"{SERVICE}ReceiveMessage",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.ReceiveMessageResponse.FromString,
        )
        return [answer async for answer in call(request, metadata=self.metadata, timeout=timeout)]

    def telemetry(self) -> Telemetry:
        """Open a stream."""
        call = self.channel.stream_stream(
            f"{SERVICE}Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=v2.TelemetryCommand.FromString,
        )
        return Telemetry(call(metadata=self.metadata))

    async def publish(self, *topics: str) -> Telemetry:
        """Be a producer of some topics."""
        stream = self.telemetry()
        publishing = v2.Publishing(topics=[v2.Resource(name=topic) for topic in topics])
        await stream.settings(v2.Settings(client_type=v2.ClientType.PRODUCER, publishing=publishing))
        return stream

    async def subscribe(
        self, group: str, *topics: str, kind: v2.ClientType = v2.ClientType.SIMPLE_CONSUMER
    ) -> Telemetry:
        """Be a consumer of some topics."""
        entries = [
            v2.SubscriptionEntry(
                topic=v2.Resource(name=topic),
                expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
            )
            for topic in topics
        ]
        subscription = v2.Subscription(group=v2.Resource(name=group), subscriptions=entries)
        stream = self.telemetry()
        await stream.settings(v2.Settings(client_type=kind, subscription=subscription))
        return stream

    async def send(self, topic: str, body: bytes, **system: Any) -> Any:
        """Send one message; its answer."""
        return await self.ask("SendMessage", v2.SendMessageRequest(messages=[message(topic, body, **system)]))


class Telemetry:
    """An open stream."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.merged: v2.Settings | None = None

    async def settings(self, settings: v2.Settings) -> v2.Settings:
        """Send settings; return the merged ones."""
        await self.call.write(v2.TelemetryCommand(settings=settings))
        answer = await self.read()
        assert answer.status.code == v2.Code.OK
        self.merged = answer.settings
        return answer.settings

    async def read(self) -> v2.TelemetryCommand:
        """The next command."""
        answer = await self.call.read()
        assert isinstance(answer, v2.TelemetryCommand), await self.call.code()
        return answer

    async def commands(self) -> AsyncIterator[v2.TelemetryCommand]:
        """All further commands."""
        while True:
            yield await self.read()


def message(topic: str, body: bytes, properties: dict[str, str] | None = None, **system: Any) -> v2.Message:
    """A message with an id of its own."""
    system.setdefault("message_id", f"ID{next(_ids):030d}")
    return v2.Message(
        topic=v2.Resource(name=topic),
        body=body,
        user_properties=properties or {},
        system_properties=v2.SystemProperties(**system),
    )


def receive(topic: str, group: str, broker: str, **fields: Any) -> v2.ReceiveMessageRequest:
    """A request for messages that waits for them shortly."""
    fields.setdefault("batch_size", 32)
    fields.setdefault("invisible_duration", duration(30_000))
    fields.setdefault("long_polling_timeout", duration(5_000))
    return v2.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), broker=v2.Broker(name=broker)),
        filter_expression=v2.FilterExpression(type=v2.FilterType.TAG, expression="*"),
        **fields,
    )
