"""A broker's connection: the producer, and the consumers of subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from faststream.exceptions import SetupError

from cometmq.client import (
    AccessDeniedError,
    Admin,
    MessageExt,
    PoppedMessage,
    Producer,
    PushConfig,
    PushConsumer,
    RouteNotFoundError,
    Security,
    SimpleConsumer,
    SimpleConsumerConfig,
    TransactionProducer,
    TransactionState,
)
from cometmq.client.consumer.failures import send_to_retry_topic
from cometmq.client.consumer.listener import Verdict
from cometmq.errors import CometMQError
from cometmq.limits import MAX_TOPIC_CHARS
from cometmq.message.names import AUTO_CREATE_TOPIC, retry_topic

Checker = Callable[[MessageExt], Awaitable[TransactionState]]
"""Returns the outcome of a message's local work when the broker asks."""
Work = Callable[[str], Awaitable[TransactionState | None]]
"""Does the local work of a transaction, whose id it gets; ``None`` is COMMIT."""


class Reads:
    """A subscriber's group, its topics, and one filter for all of them."""

    def __init__(self, group: str, topics: Sequence[str], expression: str, expression_type: str) -> None:
        self.group = group
        self.topics = tuple(topics)
        self.expression = expression
        self.expression_type = expression_type

    def check(self) -> None:
        """Check that the group's retry topics can have names.

        :raises SetupError: the group's name is too long.
        """
        for topic in self.topics:
            name = f"{retry_topic(self.group)}_{topic}"
            if len(name) > MAX_TOPIC_CHARS:
                raise SetupError(
                    f"{name} is longer than {MAX_TOPIC_CHARS} characters: pass a shorter group= to the subscriber"
                )

    def signature(self) -> tuple[object, ...]:
        """Return the part that all members of a group have in common."""
        return frozenset(self.topics), self.expression, self.expression_type


class Connection:
    """The clients of one broker.

    :param group: the producer group, and the beginning of consumer groups.
    :param check: answers the broker's questions about transactions; without it there are none.
    :param topic_queues: number of queues of topics that subscribers create; with 0 they create none.
    """

    def __init__(
        self,
        namesrv: str | None,
        group: str,
        security: Security | None,
        *,
        check: Checker | None = None,
        topic_queues: int = 8,
    ) -> None:
        self._namesrv = namesrv
        self._security = security
        self._topic_queues = topic_queues
        if check is None:
            self.producer = Producer(group, namesrv, security=security)
        else:
            self.producer = TransactionProducer(group, _do, check, namesrv, security=security)
        self._members: dict[str, tuple[object, ...]] = {}

    async def open(self) -> None:
        """Start the producer."""
        await self.producer.start()

    async def close(self) -> None:
        """Send what is on its way, and close the producer."""
        await self.producer.close()

    async def ping(self, timeout_s: float) -> bool:
        """Return whether a nameserver answers in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.producer.instance.routes.refresh(AUTO_CREATE_TOPIC)
        except RouteNotFoundError:
            return True
        except (CometMQError, TimeoutError):
            return False
        return True

    async def simple(
        self, reads: Reads, config: SimpleConsumerConfig, on_lost: Callable[[PoppedMessage], object]
    ) -> SimpleConsumer:
        """Return a consumer that has joined its group.

        :raises SetupError: another subscriber of the group reads something else.
        :raises CometMQError: no server answers, or a permission is missing.
        """
        await self._ready(reads)
        consumer = SimpleConsumer(
            reads.group, None, self._namesrv, config=config, on_lost=on_lost, security=self._security
        )
        for topic in reads.topics:
            await consumer.subscribe(topic, reads.expression, expression_type=reads.expression_type)
        await consumer.start()
        return consumer

    async def ordered(
        self, reads: Reads, config: PushConfig, listener: Callable[[Sequence[MessageExt]], Awaitable[Verdict]]
    ) -> PushConsumer:
        """Return a consumer of queues in order that has joined its group.

        :raises SetupError: another subscriber of the group reads something else.
        :raises CometMQError: no server answers, or a permission is missing.
        """
        await self._ready(reads)
        consumer = PushConsumer(reads.group, listener, self._namesrv, config=config, security=self._security)
        for topic in reads.topics:
            await consumer.subscribe(topic, reads.expression, expression_type=reads.expression_type)
        await consumer.start()
        return consumer

    async def make_dead_letter(self, group: str, message: MessageExt) -> None:
        """Store a copy of a message that a group's member received in order as a dead letter.

        :raises CometMQError: it is not stored, or it is unknown whether it is.
        """
        await send_to_retry_topic(self.producer.instance, group, message, message.reconsume_times)

    async def _ready(self, reads: Reads) -> None:
        reads.check()
        known = self._members.setdefault(reads.group, reads.signature())
        if known != reads.signature():
            raise SetupError(
                f"two subscribers of group {reads.group} read different topics, or filter differently, but a group's "
                "members must agree: pass group= to one of them"
            )
        if self._topic_queues:
            async with Admin(instance=self.producer.instance) as admin:
                for topic in reads.topics:
                    await _ensure(admin, topic, self._topic_queues)


async def _ensure(admin: Admin, topic: str, queues: int) -> None:
    try:
        await admin.topic_route(topic)
    except RouteNotFoundError:
        try:
            await admin.create_topic(topic, queues=queues)
        except AccessDeniedError as error:
            error.next_step = f"create it with an administrator's account: cometmq topic create {topic}"
            raise


async def _do(_message: object, work: Work, transaction: str) -> TransactionState:
    """Do the local work of a transaction."""
    state = await work(transaction)
    return TransactionState.COMMIT if state is None else state
