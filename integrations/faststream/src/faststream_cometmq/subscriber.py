"""Subscribers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.utils import MultiLock
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage

from cometmq.client import MessageExt, PoppedMessage, PushConsumer, SimpleConsumer
from cometmq.client.consumer.listener import Verdict
from cometmq.client.simple.config import MAX_MESSAGES
from cometmq.errors import CometMQError
from faststream_cometmq.config import RocketMQSubscriberConfig
from faststream_cometmq.connection import Reads
from faststream_cometmq.message import Raw, RocketMQMessage, RocketMQParser, Unsettled, is_damaged
from faststream_cometmq.publisher import ReplyPublisher
from faststream_cometmq.settlement import OrderedSettlement, PopSettlement

_PAUSE_S: Final = 1.0
"""Seconds until messages are asked for again after an error."""
_AHEAD_S: Final = 0.1
"""Seconds of work that is received in advance, so that other members get what a slow handler would keep waiting."""
_SHORT_S: Final = 0.001


class RocketMQSubscriber(SubscriberUsecase[Raw]):
    """Reads topics, and passes their messages to handlers."""

    _outer_config: Any

    def __init__(
        self,
        config: RocketMQSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Raw],
    ) -> None:
        self.options = config
        self._own_parser = parser = RocketMQParser()
        config.parser = parser.parse_batch if config.batch else parser.parse_message
        config.decoder = parser.decode_batch if config.batch else parser.decode_message
        super().__init__(config, specification, calls)
        self._consumer: SimpleConsumer | PushConsumer | None = None
        self._waiting: deque[Raw] = deque()
        """Messages that were received and are not being handled yet."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        """The end of a consumer of queues in order."""
        self._free = asyncio.Semaphore(config.max_workers)

    @property
    def reads(self) -> Reads:
        """The group, topics and filter, with the prefixes of its routers."""
        return self.options.reads(self._outer_config)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, with the prefixes of its routers."""
        return self.reads.topics

    # --- start and end ---

    async def start(self) -> None:
        """Join the group and begin.

        :raises SetupError: another subscriber of the group reads something else.
        :raises CometMQError: no server answers, or a permission is missing.
        """
        await super().start()
        if not self.calls:
            if not self.options.fifo:
                await self._opened()
            self._post_start()
            return
        self._free = asyncio.Semaphore(self.options.max_workers)
        if self.options.fifo:
            settlement = OrderedSettlement(self.options.nack_delay_s)
            self._own_parser.settlement = settlement
            self._post_start()
            self._consumer = await self._outer_config.connection.ordered(
                self.reads, self.options.ordered(), self._listener(settlement)
            )
            if not self.running:  # a handler has stopped it already
                await self._close()
            return
        consumer = await self._opened()
        self._post_start()
        self._spawn(self._read(consumer))

    async def _opened(self) -> SimpleConsumer:
        """Return the consumer by POP, which joins its group if it has not yet."""
        if self.options.fifo:
            raise FeatureNotSupportedException("a subscriber with fifo=True needs a handler")
        if self._consumer is None:
            consumer = await self._outer_config.connection.simple(self.reads, self.options.simple(), self._lost)
            self._own_parser.settlement = PopSettlement(consumer, self.options.nack_delay_s)
            self._consumer = consumer
        assert isinstance(self._consumer, SimpleConsumer)
        return self._consumer

    async def stop(self) -> None:
        """Receive nothing more, wait for handlers up to the broker's ``graceful_timeout``, and leave the group.

        Messages that are not handled by then are received by another member.
        """
        self.running = False
        if isinstance(self._consumer, SimpleConsumer):
            self._consumer.stop()
        if isinstance(self.lock, MultiLock):
            await self.lock.wait_release(self._outer_config.graceful_timeout)
        current = asyncio.current_task()
        if isinstance(self._consumer, PushConsumer) and current in self._tasks:
            self._closing = asyncio.get_running_loop().create_task(self._close())  # it waits for this handler
            return
        if self._closing is not None:
            await self._closing
        await asyncio.sleep(0)  # a handler's task that has not begun puts its message back
        others = {task for task in self._tasks if task is not current}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_PAUSE_S)
        await self._close()

    async def _close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        if isinstance(consumer, SimpleConsumer):
            for raw in self._waiting:
                consumer.give_back(_rows(raw))
            self._waiting.clear()
        await consumer.close()
        self._own_parser.settlement = Unsettled()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lost(self, message: PoppedMessage) -> None:
        self._log(logging.ERROR, f"another member may receive message {message.msg_id}, which is being handled")

    # --- messages by POP ---

    async def _read(self, consumer: SimpleConsumer) -> None:
        most = self.options.max_records if self.options.batch else self.options.max_workers
        most, loop = min(most, MAX_MESSAGES), asyncio.get_running_loop()
        while self.running and consumer is self._consumer:
            try:
                found = await self._readable(consumer, await consumer.receive(most))
            except CometMQError as error:
                if self.running:
                    self._log(logging.ERROR, f"no messages: {error}")
                    await asyncio.sleep(_PAUSE_S)
                continue
            if not found:
                continue
            began = loop.time()
            self._waiting.extend([tuple(found)] if self.options.batch else found)
            await self._handle()
            if not self.options.batch:
                ahead = round(len(found) * _AHEAD_S / max(loop.time() - began, _SHORT_S))
                most = min(max(ahead, self.options.max_workers), self.options.max_records)

    async def _readable(self, consumer: SimpleConsumer, found: list[PoppedMessage]) -> list[PoppedMessage]:
        """Return the messages without those whose bodies are damaged, which become dead letters."""
        damaged = [message for message in found if is_damaged(message)]
        for message in damaged:
            self._log(logging.ERROR, f"message {message.msg_id} becomes a dead letter: its body is damaged")
            try:
                await consumer.reject(message)
            except CometMQError as error:
                self._log(logging.ERROR, f"message {message.msg_id} comes again: {error}")
        return [message for message in found if message not in damaged] if damaged else found

    async def _handle(self) -> None:
        """Pass the waiting messages to handlers."""
        while self._waiting and self.running:
            if self.options.max_workers == 1:
                await self.consume(self._waiting.popleft())
                continue
            await self._free.acquire()
            if not (self._waiting and self.running):
                self._free.release()
                return
            self._spawn(self._consume(self._waiting.popleft()))

    async def _consume(self, raw: Raw) -> None:
        try:
            if self.running:
                await self.consume(raw)
            else:
                self._waiting.appendleft(raw)
        finally:
            self._free.release()

    async def get_one(self, *, timeout: float = 5.0) -> RocketMQMessage | None:
        """Return the next message, which is not acknowledged yet, or ``None`` after ``timeout`` seconds."""
        assert not self.calls, "get_one is for subscribers without handlers"
        consumer = await self._opened()
        found = await consumer.receive(1, wait_s=timeout)
        return await self._parsed(found[0]) if found else None

    async def __aiter__(self) -> AsyncIterator[RocketMQMessage]:
        """Iterate over messages, which are not acknowledged yet, until the subscriber stops."""
        assert not self.calls, "iteration is for subscribers without handlers"
        consumer = await self._opened()
        async for raw in consumer:
            yield await self._parsed(raw)

    async def _parsed(self, message: MessageExt) -> RocketMQMessage:
        raw: Raw = (message,) if self.options.batch else message
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        found = await process_msg(
            msg=raw,
            middlewares=(middleware(raw, context=context) for middleware in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )
        assert isinstance(found, RocketMQMessage)
        return found

    # --- messages in order ---

    def _listener(self, settlement: OrderedSettlement) -> Any:
        async def listen(messages: Sequence[MessageExt]) -> Verdict:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                whole = await self._whole(messages, settlement)
                if whole:
                    await self.consume(tuple(whole) if self.options.batch else whole[0])
            except asyncio.CancelledError:
                if self.running:
                    raise
                task.uncancel()  # by `stop`: the queue waits until the consumer has left it
            finally:
                self._tasks.discard(task)
            return settlement.verdict(messages, whole)

        return listen

    async def _whole(self, messages: Sequence[MessageExt], settlement: OrderedSettlement) -> list[MessageExt]:
        """Return the messages without those whose bodies are damaged, which become dead letters once.

        :raises CometMQError: a dead letter is not stored, and the queue waits.
        """
        damaged = [message for message in messages if is_damaged(message)]
        for message in damaged:
            if message.offset_msg_id not in settlement.dead_letters:
                self._log(logging.ERROR, f"message {message.msg_id} becomes a dead letter: its body is damaged")
                await self._outer_config.connection.make_dead_letter(self.reads.group, message)
                settlement.dead_letters.add(message.offset_msg_id)
        return [message for message in messages if message not in damaged]

    # --- replies and logs ---

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        """Return what log lines say about a message."""
        reads = self.reads
        topic = ",".join(reads.topics)
        if isinstance(message, RocketMQMessage):
            topic = message.messages[0].topic
        return {"topic": topic, "group": reads.group, "message_id": getattr(message, "message_id", "")}


def _rows(raw: Raw) -> list[PoppedMessage]:
    rows = raw if isinstance(raw, tuple) else (raw,)
    return [one for one in rows if isinstance(one, PoppedMessage)]
