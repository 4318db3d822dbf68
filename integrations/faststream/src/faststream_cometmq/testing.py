"""A broker in memory, for tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio
from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from cometmq.client import (
    Message,
    MessageExt,
    MessageQueue,
    PoppedMessage,
    Producer,
    PushConfig,
    SendResult,
    SendStatus,
    SimpleConsumer,
    SimpleConsumerConfig,
    TransactionSendResult,
    TransactionState,
)
from cometmq.client.consumer.listener import Verdict
from cometmq.client.consumer.subscription import SQL92
from cometmq.filter.selector import parse_selector
from cometmq.message.hosts import encode_host
from cometmq.message.ids import UniqIdGenerator
from cometmq.message.properties import UNIQ_KEY, encode_properties
from cometmq.message.record import encode_record
from cometmq.message.tags import split_tags
from faststream_cometmq.broker import RocketMQBroker
from faststream_cometmq.connection import Connection, Reads
from faststream_cometmq.message import Raw
from faststream_cometmq.producer import RocketMQProducer
from faststream_cometmq.publisher import RocketMQPublisher
from faststream_cometmq.response import RocketMQPublishCommand, RocketMQResponse
from faststream_cometmq.subscriber import RocketMQSubscriber

_HOST = encode_host("127.0.0.1", 0)
_IDS = UniqIdGenerator()


class TestRocketMQBroker(TestBroker[RocketMQBroker, EnterType], broker=RocketMQBroker):
    """Passes what is published to the handlers at once: ``async with TestRocketMQBroker(broker): …``.

    Groups, tags and SQL92 work as in a broker; delays, retries and order are those of a broker only.
    """

    @contextmanager
    def _patch_producer(self, broker: RocketMQBroker) -> Generator[None, None, None]:
        config = broker.config.broker_config
        connection = config._connection
        with change_producer(config, FakeProducer(broker, self.brokers)):
            yield
        config._connection = connection

    async def _fake_connect(  # type: ignore[override]
        self, broker: RocketMQBroker, *args: Any, **kwargs: Any
    ) -> FakeConnection:
        connection = FakeConnection(None, broker.config.broker_config.group, None)
        broker.config.broker_config._connection = connection
        return connection

    def create_publisher_fake_subscriber(
        self, broker: RocketMQBroker, publisher: RocketMQPublisher
    ) -> tuple[RocketMQSubscriber, bool]:
        """Return the subscriber of a publisher's topic, and whether it is the application's."""
        for found in _subscribers(self.brokers):
            if publisher.topic in found.topics:
                return found, True
        return broker.subscriber(publisher.topic, batch=publisher.config.batch, persistent=False), False


class FakeConnection(Connection):
    """A connection to nothing."""

    async def simple(
        self, reads: Reads, config: SimpleConsumerConfig, on_lost: Callable[[PoppedMessage], object]
    ) -> SimpleConsumer:
        """Return a consumer that receives nothing."""
        return _Nothing(reads.group)

    async def ordered(
        self, reads: Reads, config: PushConfig, listener: Callable[[Sequence[MessageExt]], Awaitable[Verdict]]
    ) -> Any:
        """Return a consumer that receives nothing."""
        return _Nothing(reads.group)


class _Nothing(SimpleConsumer):
    """A consumer without servers."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self._stopped = asyncio.Event()

    async def receive(self, *args: Any, **kwargs: Any) -> list[PoppedMessage]:
        """Wait until the consumer is stopped."""
        await self._stopped.wait()
        return []

    def stop(self) -> None:
        """End all waiting calls."""
        self._stopped.set()

    async def close(self) -> None:
        """End all waiting calls."""
        self.stop()


class FakeProducer(RocketMQProducer):
    """Passes messages to the handlers of their topic: one in each group."""

    def __init__(self, broker: RocketMQBroker, brokers: Sequence[RocketMQBroker]) -> None:
        config = broker.config.broker_config
        super().__init__(broker._parser, broker._decoder)
        self.connect(None, config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers

    @property
    def client(self) -> Producer:
        """There is no client.

        :raises NotImplementedError: always.
        """
        raise NotImplementedError("a broker in memory has no client")

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult:
        """Pass a message to the handlers of its topic."""
        message = stored(await self.message(cmd))
        if cmd.work is not None:
            outcome = await cmd.work(message.msg_id)
            state = TransactionState.COMMIT if outcome is None else outcome
            if state is TransactionState.COMMIT:
                await self._deliver(message)
            place = _result(message)
            return TransactionSendResult(
                place.status, place.msg_id, place.offset_msg_id, place.queue, 0, state=state, confirmed=True
            )
        await self._deliver(message)
        return _result(message)

    async def _deliver(self, message: MessageExt) -> None:
        for subscriber in self._receivers(message):
            await subscriber.process_message((message,) if subscriber.options.batch else message)

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[SendResult]:
        """Pass messages to the handlers of their topic."""
        messages = [stored(message) for message in await self.messages(cmd)]
        wanted: dict[RocketMQSubscriber, list[MessageExt]] = {}
        for message in messages:
            for subscriber in self._receivers(message):
                wanted.setdefault(subscriber, []).append(message)
        for subscriber, found in wanted.items():
            raws: Sequence[Raw] = [tuple(found)] if subscriber.options.batch else found
            for raw in raws:
                await subscriber.process_message(raw)
        return [_result(message) for message in messages]

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        """Return the result of the topic's handler.

        :raises SubscriberNotFound: there is no handler.
        :raises TimeoutError: the handler takes longer.
        """
        message = stored(await self.message(cmd))
        for subscriber in self._receivers(message):
            with anyio.fail_after(cmd.timeout):
                result = await subscriber.process_message((message,) if subscriber.options.batch else message)
            reply = RocketMQResponse(result.body, headers=result.headers, correlation_id=result.correlation_id)
            answer = reply.as_publish_command()
            answer.destination = cmd.destination
            return stored(await self.message(answer))
        raise SubscriberNotFound(f"no subscriber reads {cmd.destination}")

    def _receivers(self, message: MessageExt) -> Iterator[RocketMQSubscriber]:
        seen: set[str] = set()
        for subscriber in _subscribers(self._brokers):
            reads = subscriber.reads
            if reads.group not in seen and message.topic in reads.topics and _is_wanted(message, reads):
                seen.add(reads.group)
                yield subscriber


def _subscribers(brokers: Sequence[RocketMQBroker]) -> list[RocketMQSubscriber]:
    return [found for broker in brokers for found in broker.subscribers if isinstance(found, RocketMQSubscriber)]


def _is_wanted(message: MessageExt, reads: Reads) -> bool:
    if reads.expression_type == SQL92:
        return parse_selector(reads.expression).matches(message.properties)
    return reads.expression == "*" or message.tags in split_tags(reads.expression)


def stored(message: Message) -> PoppedMessage:
    """Return a message as a consumer receives it."""
    now_ms = round(time.time() * 1000)
    record = encode_record(
        topic=message.topic,
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=message.body,
        properties_text=encode_properties({UNIQ_KEY: _IDS.next(), **message.all_properties()}),
        born_timestamp=now_ms,
        born_host=_HOST,
        store_timestamp=now_ms,
        store_host=_HOST,
    )
    return PoppedMessage(record, 0, "memory", deserializer=None, _subscribed=message.topic)


def _result(message: MessageExt) -> SendResult:
    queue = MessageQueue(message.topic, "memory", 0)
    return SendResult(SendStatus.SEND_OK, message.msg_id, message.offset_msg_id, queue, 0)
