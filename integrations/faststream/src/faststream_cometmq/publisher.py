"""Publishers, and those of replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.types import PublisherMiddleware
from faststream.message import StreamMessage
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from cometmq.client import MessageExt, SendResult
from cometmq.message.names import reply_topic
from cometmq.message.properties import CLUSTER, REPLY_TO_CLIENT
from faststream_cometmq.config import RocketMQPublisherConfig
from faststream_cometmq.message import REPLY_TO, RocketMQMessage
from faststream_cometmq.options import SendOptions
from faststream_cometmq.producer import RocketMQProducer
from faststream_cometmq.response import DEFAULT_TIMEOUT_S, RocketMQPublishCommand


class RocketMQPublisher(PublisherUsecase):
    """Publishes to one topic."""

    _outer_config: Any

    def __init__(self, config: RocketMQPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self.config = config

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of its routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> SendResult:
        """Publish a message, as :meth:`RocketMQBroker.publish`; what is missing is the publisher's own.

        A publisher with ``batch=True`` publishes each message of a sequence.
        """
        batch = self.config.batch and isinstance(message, Sequence) and not isinstance(message, str | bytes)
        body, bodies = RocketMQPublishCommand._parse_bodies(message, batch=batch)
        cmd = self._command(body, *bodies, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.reply_to = reply_to or self.config.reply_to
        result: SendResult = await self._send(cmd, ())
        return result

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> RocketMQMessage:
        """Send a request and return its reply, as :meth:`RocketMQBroker.request`."""
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.timeout = timeout
        cmd.publish_type = PublishType.REQUEST
        reply: RocketMQMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    def _command(
        self,
        body: Any,
        *bodies: Any,
        topic: str,
        headers: dict[str, str] | None,
        correlation_id: str | None,
        options: SendOptions,
    ) -> RocketMQPublishCommand:
        return RocketMQPublishCommand(
            body,
            *bodies,
            topic=topic or self.topic,
            headers={**self.config.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(),
            options={**self.config.options, **options},
            _publish_type=PublishType.PUBLISH,
        )

    async def _send(self, cmd: RocketMQPublishCommand, middlewares: Iterable[PublisherMiddleware]) -> Any:
        publish = self._basic_publish_batch if self.config.batch else self._basic_publish
        return await publish(cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares)

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """Publish a handler's result."""
        own = RocketMQPublishCommand.from_cmd(cmd, batch=self.config.batch)
        own.destination = self.topic
        own.reply_to = self.config.reply_to
        own.add_headers(dict(self.config.headers), override=False)
        own.options = {**self.config.options, **own.options}
        await self._send(own, _extra_middlewares)


class ReplyPublisher(FakePublisher):
    """Answers one message: to its sender if it is a request of RocketMQ, or to the topic that it names."""

    def __init__(self, producer: RocketMQProducer, message: StreamMessage[Any]) -> None:
        super().__init__(producer=producer)
        self._message = message

    def patch_command(self, cmd: PublishCommand) -> RocketMQPublishCommand:
        """Return the command of the reply."""
        own = RocketMQPublishCommand.from_cmd(super().patch_command(cmd))
        own.destination = self._message.reply_to
        raw = self._message.raw_message
        if isinstance(raw, MessageExt) and REPLY_TO_CLIENT in raw.properties and REPLY_TO not in raw.properties:
            own.request = raw
            own.destination = reply_topic(raw.properties.get(CLUSTER, ""))
        return own
