"""The results of handlers, and the commands that publish them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, Unpack

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from cometmq.client import MessageExt
from faststream_cometmq.connection import Work
from faststream_cometmq.options import SendOptions

DEFAULT_TIMEOUT_S = 3.0
"""Seconds for a request and its reply."""


class RocketMQResponse(Response):
    """A handler's result, or a message of a batch, with options of its own.

    :param options: see :class:`~faststream_cometmq.options.SendOptions`.
    """

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> RocketMQPublishCommand:
        """Return the command that publishes it."""
        return RocketMQPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            _publish_type=PublishType.PUBLISH,
        )


class RocketMQPublishCommand(BatchPublishCommand):
    """A message, or a batch, on its way through the middlewares to the producer."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        options: SendOptions | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.options: SendOptions = options or {}
        self.timeout = timeout
        """Seconds for a request and its reply."""
        self.request: MessageExt | None = None
        """The request that the message answers."""
        self.work: Work | None = None
        """The local work of a transaction."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return the command of another provider's, or itself."""
        if isinstance(cmd, cls):
            if batch and not cmd.extra_bodies:
                body, bodies = cls._parse_bodies(cmd.body, batch=True)
                cmd.batch_bodies = () if body is None else (body, *bodies)
            return cmd
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def rows(self) -> Sequence[tuple[Any, dict[str, Any], SendOptions, str | None]]:
        """Return body, headers, options and correlation id of each message of the batch."""
        found = []
        for body in self.batch_bodies:
            if isinstance(body, RocketMQResponse):
                options: SendOptions = {**self.options, **body.options}
                correlation = body.correlation_id or self.correlation_id
                found.append((body.body, {**self.headers, **body.headers}, options, correlation))
            else:
                found.append((body, self.headers, self.options, self.correlation_id))
        return found
