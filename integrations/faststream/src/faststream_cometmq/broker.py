"""The broker."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Unpack

from fast_depends import Provider, dependency_provider
from fast_depends.library.serializer import SerializerProto
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.types import IdGenerator
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.security import BaseSecurity
from faststream.specification.schema import BrokerSpec
from faststream.specification.schema.extra import Tag, TagDict

from cometmq.client import SendResult, Tls
from cometmq.client.producer.transaction_producer import TransactionSendResult
from faststream_cometmq.config import DEFAULT_GROUP, RocketMQBrokerConfig
from faststream_cometmq.connection import Checker, Connection, Work
from faststream_cometmq.logs import logger_state
from faststream_cometmq.message import Raw, RocketMQMessage
from faststream_cometmq.options import RouterOptions, SendOptions
from faststream_cometmq.producer import RocketMQProducer
from faststream_cometmq.registrator import RocketMQRegistrator
from faststream_cometmq.response import DEFAULT_TIMEOUT_S, RocketMQPublishCommand
from faststream_cometmq.router import shared
from faststream_cometmq.security import security_of


class RocketMQBroker(RocketMQRegistrator, BrokerUsecase[Raw, Connection, RocketMQBrokerConfig]):
    """FastStream's broker for CometMQ and Apache RocketMQ 5: ``RocketMQBroker("localhost:9876")``.

    :param namesrv: ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``.
    :param group: the producer group; consumer groups without a name of their own begin with it.
    :param check: an ``async`` function that answers the brokers' questions about transactions: it gets a message, and
        returns a ``TransactionState``. Without it there are no transactions. Brokers ask any program of the group, so
        it needs a ``group`` of its own.
    :param security: an account as :class:`~faststream.security.SASLPlaintext`, or ``BaseSecurity`` for TLS alone; by
        default from the environment.
    :param tls: the certificates.
    :param topic_queues: number of queues of a topic that a subscriber creates, because it does not exist; with 0,
        subscribers create no topics.
    :param graceful_timeout: seconds for which ``stop`` waits for handlers.
    :param options: see :class:`~faststream_cometmq.options.RouterOptions`.
    :raises SetupError: the security has no counterpart in RocketMQ, or ``check`` has no group of its own.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        group: str = DEFAULT_GROUP,
        check: Checker | None = None,
        security: BaseSecurity | None = None,
        tls: Tls | None = None,
        topic_queues: int = 8,
        graceful_timeout: float | None = 15.0,
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        protocol: str = "rocketmq",
        protocol_version: str | None = "5",
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
        **options: Unpack[RouterOptions],
    ) -> None:
        if check is not None and group == DEFAULT_GROUP:
            raise SetupError("pass group= beside check=: brokers ask any producer of the group about its transactions")
        places = namesrv or os.environ.get("NAMESRV_ADDR") or "127.0.0.1:9876"
        super().__init__(
            namesrv=namesrv,
            group=group,
            check=check,
            security=security_of(security, tls),
            topic_queues=topic_queues,
            routers=options.get("routers", ()),
            config=RocketMQBrokerConfig(
                group=group,
                producer=RocketMQProducer(options.get("parser"), options.get("decoder")),
                logger=logger_state(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout,
                id_generator=id_generator,
                extra_context={"broker": self},
                **shared(options),
            ),
            specification=BrokerSpec(
                url=[specification_url] if specification_url else places.split(";"),
                protocol=protocol,
                protocol_version=protocol_version,
                description=description,
                tags=tags,
                security=security,
            ),
        )

    # --- start and end ---

    async def _connect(self) -> Connection:
        connection = Connection(**self._connection_kwargs)
        await connection.open()
        self.config.broker_config.connect(connection)
        return connection

    async def start(self) -> None:
        """Connect, and begin to receive.

        :raises SetupError: two subscribers of one group read different topics.
        :raises CometMQError: no server answers, or a permission is missing.
        """
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Wait for handlers, leave the groups, and close the connections."""
        await super().stop(exc_type, exc_val, exc_tb)
        connection, self._connection = self._connection, None
        if connection is not None:
            self.config.broker_config.disconnect()
            await connection.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Return whether a nameserver answers within ``timeout`` seconds, by default 5."""
        return self._connection is not None and await self._connection.ping(timeout or 5.0)

    # --- messages ---

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
        """Publish a message; return when a broker has stored it.

        :param message: bytes, text, or what becomes JSON.
        :param headers: properties of the message; RocketMQ does not keep empty ones.
        :param reply_to: a topic for the result of the handler.
        :param options: see :class:`~faststream_cometmq.options.SendOptions`.
        :raises DelayNotSupportedError: the broker is older than RocketMQ 5 and knows no such delay.
        :raises CometMQError: the message was not stored.
        """
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.reply_to = reply_to
        result: SendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def publish_batch(  # type: ignore[override]
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[SendOptions],
    ) -> Sequence[SendResult]:
        """Publish messages in as few requests as possible.

        A message that is a :class:`RocketMQResponse` has headers and options of its own.

        :raises PartlySentError: some messages were not stored; see its ``outcomes``.
        :raises CometMQError: no message was stored.
        """
        first, *rest = messages or (None,)
        cmd = self._command(first, *rest, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.reply_to = reply_to
        results: Sequence[SendResult] = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return results

    async def publish_in_transaction(
        self,
        message: Any,
        topic: str,
        work: Work,
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[SendOptions],
    ) -> TransactionSendResult:
        """Publish a message that is delivered only if the local work succeeds.

        :param work: an ``async`` function that gets the transaction's id after a broker has stored the message. It
            returns a ``TransactionState``; ``None`` is COMMIT. If it raises, the brokers ask the broker's ``check``.
        :raises SetupError: the broker has no ``check``.
        :raises CometMQError: the message was not stored, and the work was not begun.
        """
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.work = work
        result: TransactionSendResult = await self._basic_publish(cmd, producer=self.config.producer)
        return result

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        **options: Unpack[SendOptions],
    ) -> RocketMQMessage:
        """Publish a request of RocketMQ, and return its reply: the result of the handler.

        :param timeout: seconds for both.
        :raises TimeoutError: no reply came in time.
        :raises CometMQError: the request was not stored.
        """
        cmd = self._command(message, topic=topic, headers=headers, correlation_id=correlation_id, options=options)
        cmd.timeout = timeout
        cmd.publish_type = PublishType.REQUEST
        reply: RocketMQMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    async def recall(self, handle: str) -> str:
        """Recall a delayed message before it is due; return its id.

        :param handle: ``recall_handle`` of the result of ``publish``.
        :raises RecallHandleError: the handle is malformed.
        :raises BrokerError: it is too late, or the broker does not recall messages.
        """
        return await self.config.broker_config.producer.client.recall(handle)

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
            topic=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id or self.config.id_generator(),
            options=options,
            _publish_type=PublishType.PUBLISH,
        )
