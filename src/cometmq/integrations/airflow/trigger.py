"""Airflow's trigger: an event for each message of a topic.

In Airflow 3.3 and newer, all DAGs with the same topic and group share one consumer, and a message is acknowledged when
Airflow has stored the events that it led to (``SharedStreamProducer``). Older versions tell nobody when an event is
stored: there, a message is acknowledged as soon as the triggerer has taken its event. In both cases, a message whose
triggerer died before is received again.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from cometmq.client import MessageExt, PoppedMessage, SimpleConsumer, SimpleConsumerConfig
from cometmq.integrations.airflow.connection import settings_by_id
from cometmq.message.compression import DecompressionError

log = logging.getLogger(__name__)

_CONFIG: Final = SimpleConsumerConfig(invisible_s=60.0, renew_up_to_s=3600.0, gives_back_when_gone=True)


class RocketMQMessageTrigger(BaseEventTrigger):
    """Fires an event for each message that a consumer group receives.

    The payload has ``topic``, ``message_id``, ``keys``, ``tags``, ``properties``, ``attempt`` and ``body`` (text), or
    ``body_base64`` if the body is no UTF-8. Credentials and TLS come from the connection, or else from the triggerer's
    environment.

    :param topic: the topic.
    :param group: the consumer group. Each message starts the DAGs of a group once.
    :param namesrv: ``host:port;host:port``; by default those of the connection, ``$NAMESRV_ADDR``, or
        ``127.0.0.1:9876``.
    :param expression: ``*``, or tags such as ``TagA || TagB``.
    :param conn_id: a connection of Airflow of type ``rocketmq``.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        namesrv: str | None = None,
        expression: str = "*",
        conn_id: str | None = None,
    ) -> None:
        super().__init__()
        self.topic = topic
        self.group = group
        self.namesrv = namesrv
        self.expression = expression
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments, for Airflow's database."""
        arguments = {
            "topic": self.topic,
            "group": self.group,
            "namesrv": self.namesrv,
            "expression": self.expression,
            "conn_id": self.conn_id,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each message, and acknowledge the message when the next event is wanted."""
        async with await _new_consumer(self.serialize()[1]) as consumer:
            async for message in consumer:
                payload = await payload_or_reject(consumer, message)
                if payload is None:
                    continue
                is_taken = False
                try:
                    yield TriggerEvent(payload)
                    is_taken = True
                finally:
                    await (consumer.ack(message) if is_taken else consumer.change_invisible(message, 0))

    # --- Airflow 3.3 and newer ---

    def shared_stream_key(self) -> Hashable | None:
        """Return the key by which the triggers of several DAGs share one consumer."""
        return (type(self).__qualname__, *self.serialize()[1].values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        """Return the consumer's side of the shared stream."""
        from cometmq.integrations.airflow.stream import MessageStream  # older versions have no such streams

        return MessageStream(lambda: _new_consumer(kwargs))

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event for each message."""
        async for payload in shared_stream:
            yield TriggerEvent(payload)


async def _new_consumer(arguments: dict[str, Any]) -> SimpleConsumer:
    subscriptions = {arguments["topic"]: arguments.get("expression") or "*"}
    namesrv, security = None, None
    if conn_id := arguments.get("conn_id"):
        namesrv, security = await settings_by_id(conn_id)
    namesrv = arguments.get("namesrv") or namesrv
    return SimpleConsumer(arguments["group"], subscriptions, namesrv, config=_CONFIG, security=security)


def payload_of(message: MessageExt) -> dict[str, Any]:
    """Return the payload of the event for a message, which can be written as JSON."""
    payload: dict[str, Any] = {
        "topic": message.topic,
        "message_id": message.msg_id,
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": dict(message.properties),
        "attempt": message.reconsume_times + 1,
    }
    try:
        payload["body"] = message.body.decode()
    except UnicodeDecodeError:
        payload["body_base64"] = base64.b64encode(message.body).decode()
    return payload


async def payload_or_reject(consumer: SimpleConsumer, message: PoppedMessage) -> dict[str, Any] | None:
    """Return the payload of the event for a message; a message with a damaged body becomes a dead letter instead.

    :raises CometMQError: the message cannot become a dead letter now, and is received again.
    """
    try:
        return payload_of(message)
    except DecompressionError as error:
        log.error("message %s becomes a dead letter: %s", message.msg_id, error)
        await consumer.reject(message)
        return None
