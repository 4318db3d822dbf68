"""A process's connections to the cluster, which its Kombu connections share.

A message whose acknowledgement was lost is *in doubt*: before the same message is sent again, the broker is asked
whether it has it. So a task that a retrying producer publishes twice is stored once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple, TypeVar

from cometmq.client.admin import Admin
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.errors import (
    AccessDeniedError,
    BrokerError,
    ClientError,
    RemotingClosedError,
    RemotingConnectError,
    RemotingError,
    RemotingSendError,
    RemotingTimeoutError,
    RouteNotFoundError,
    SendFailedError,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.producer.producer import Producer
from cometmq.client.send.config import ProducerConfig
from cometmq.client.send_result import SendResult
from cometmq.errors import CometMQError
from cometmq.integrations.attempts import Attempts
from cometmq.integrations.kombu.bindings import Bindings
from cometmq.integrations.kombu.envelope import LEVELS, Payload, StrangerError, from_message, keys_of, to_message
from cometmq.integrations.kombu.names import is_shortened, replies_topic, tag_of, topic_of_exchange, topic_of_queue
from cometmq.integrations.kombu.readers import PrivateQueue, Source
from cometmq.integrations.kombu.revoked import Recalled
from cometmq.integrations.kombu.settings import Settings
from cometmq.message.ids import RecallHandle
from cometmq.message.message import Message, MessageExt, split_records
from cometmq.message.names import MASTER_ID, TIMER_TOPIC
from cometmq.message.pop_info import pop_retry_topic
from cometmq.message.properties import REAL_TOPIC, TIMER_OUT_MS
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryMessageRequestHeader

log = logging.getLogger(__name__)
K = TypeVar("K")
V = TypeVar("V")

MAX_REMEMBERED: Final = 10_000
"""Number of delayed tasks whose handles, and of messages in doubt whose brokers, a process remembers."""
CHECK_S: Final = 2.0
"""Time in seconds for a broker to answer before a connection counts as opened."""
ABSENT_S: Final = 5.0
"""Time in seconds after which a process asks again whether a topic exists."""
DOUBT_S: Final = 600.0
"""Time in seconds after the last attempt to send a message after which it is no longer in doubt: the same message is
then another publication, for example of a task that always has the same ID.
"""
_LATER_MS: Final = 10**13
_MOST: Final = 32


class Doubt(NamedTuple):
    """The brokers that may have stored a message."""

    addresses: tuple[str, ...]
    tried_at: float
    """The monotonic time of the last attempt in seconds."""


Doubts = OrderedDict[tuple[str, str], Doubt]
"""The messages in doubt, by topic and key."""

Waiting = tuple[str, Recalled]
"""The recall handle of a delayed task, and what has to hear of its recall."""


class Session:
    """The connections of a process with one set of settings.

    :param doubts: the messages in doubt, which outlive the session.
    """

    def __init__(self, settings: Settings, doubts: Doubts) -> None:
        self.settings = settings
        self.instance = ClientInstance(settings.namesrv, security=settings.security)
        self.admin = Admin(instance=self.instance)
        config = ProducerConfig(
            send_timeout_s=settings.send_timeout,
            retry_times_when_send_failed=0,
            max_message_bytes=int(settings.max_message_bytes),
        )
        name = settings.group
        self.producer = Producer(name, instance=self.instance, config=config)
        self.puller = PullConsumer(name, instance=self.instance)
        self.bindings = Bindings(self.instance)
        self.private: dict[str, PrivateQueue] = {}
        """The queues that only this process reads."""
        self._topics: set[str] = set()
        self._absent: dict[str, float] = {}
        self._doubts = doubts
        self._handles: OrderedDict[str, Waiting] = OrderedDict()
        """The delayed tasks that this process has sent, by task ID."""

    async def open(self) -> None:
        """Prepare the connections; no request is sent yet."""
        await self.admin.__aenter__()
        await self.producer.start()
        await self.puller.start()

    async def check(self) -> None:
        """Check that a broker answers, so that Kombu waits before it tries again.

        :raises RemotingError: no nameserver answers, or no broker, or none is registered.
        """
        found = self.instance.routes.brokers.values()
        masters = {address for broker in found if (address := broker.get(MASTER_ID)) is not None}
        if not masters:
            try:
                masters = set((await self.admin.masters()).values())
            except AccessDeniedError:
                return  # the first request to a broker will tell
        if not masters:
            names = self.settings.namesrv
            advice = "check that a broker runs, and that its namesrvAddr names a nameserver of broker_url"
            raise RemotingConnectError(names, f"no broker is registered with the nameserver {names}", next_step=advice)
        asked = [asyncio.create_task(self.instance.silence(address, CHECK_S)) for address in masters]
        failures: list[RemotingError] = []
        try:
            for answer in asyncio.as_completed(asked):
                failure = await answer
                if failure is None:
                    return
                failures.append(failure)
        finally:
            for task in asked:
                task.cancel()
        reasons = "; ".join(sorted(error.message for error in failures))
        step = failures[0].next_step
        raise RemotingConnectError(min(masters), f"no broker answers: {reasons}", next_step=step) from failures[0]

    async def close(self) -> None:
        """Close the connections."""
        for queue in self.private.values():
            queue.end()
        await self.producer.close()
        await self.puller.close()
        await self.admin.__aexit__(None, None, None)

    # --- topics ---

    def known_topic(self, queue: str) -> str | None:
        """Return the topic of a queue if it is known to exist; any thread may call this."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        return topic if topic in self._topics else None

    async def ensure_queue(self, queue: str) -> str:
        """Return the topic of a queue, after creating it if it does not exist."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        if topic not in self._topics:
            await self._ensure(topic, LEVELS, "PRIORITY")
            if is_shortened(topic):
                await self.bindings.add(f"{self.settings.topic_prefix}|names", queue, topic)
        return topic

    async def _ensure(self, topic: str, queues: int, kind: str | None) -> None:
        if topic in self._topics:
            return
        if not await self.has_topic(topic):
            try:
                await self._create(topic, queues, kind)
            except ClientError as error:
                if type(error) is not ClientError:
                    raise
                raise RouteNotFoundError(topic, error.message) from error  # no broker is registered now
        self._topics.add(topic)

    async def _create(self, topic: str, queues: int, kind: str | None) -> None:
        try:
            await self.admin.create_topic(topic, queues=queues, message_type=kind)
        except BrokerError as error:
            if kind is None or error.code != ResponseCode.SYSTEM_ERROR:
                raise
            await self.admin.create_topic(topic, queues=queues)  # a broker that does not know the type

    async def has_topic(self, topic: str) -> bool:
        """Return whether a topic exists, or did so a moment ago."""
        if topic in self._topics:
            return True
        now = self.instance.clock.monotonic()
        if now - self._absent.get(topic, -ABSENT_S) < ABSENT_S:
            return False
        (data,) = await self.instance.routes.data_of([topic])
        if data is None:
            self._note_absent(topic)
            return False
        self._topics.add(topic)
        return True

    def _note_absent(self, topic: str) -> None:
        if len(self._absent) > MAX_REMEMBERED:
            self._absent.clear()
        self._absent[topic] = self.instance.clock.monotonic()

    async def has_topic_of(self, queue: str) -> bool:
        """Return whether a queue has a topic, or had one a moment ago."""
        return await self.has_topic(topic_of_queue(self.settings.topic_prefix, queue))

    async def has_queue(self, queue: str) -> bool:
        """Return whether a queue exists."""
        if queue in self.private:
            return True
        self._absent.pop(topic := topic_of_queue(self.settings.topic_prefix, queue), None)
        return await self.has_topic(topic)

    # --- sending ---

    async def put(self, queue: str, payload: Payload) -> None:
        """Store a message in a queue; a broker holds a task until its ETA.

        :raises CometMQError: it may not be stored.
        """
        topic, tag = await self._place(queue, is_task="task" in (payload.get("headers") or {}))
        await self._send(to_message(topic, payload, tag=tag, hold=tag is None), payload)

    async def publish(self, exchange: str, key: str, payload: Payload, *, always: bool) -> bool:
        """Store a message for the processes that read an exchange with their own queues; return whether it is stored.

        :param always: even if no process has ever read the exchange so.
        """
        topic = topic_of_exchange(self.settings.topic_prefix, exchange)
        if always:
            await self._ensure(topic, 1, None)
        elif not await self._may_see(topic):
            return False
        await self._send(to_message(topic, payload, tag=tag_of(key), hold=False))
        return True

    async def _place(self, queue: str, *, is_task: bool) -> tuple[str, str | None]:
        """Return the topic for a message to a queue, and the tag that it needs there."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        if queue not in self.private and (topic in self._topics or is_task or await self._may_see(topic)):
            return await self.ensure_queue(queue), None
        replies = replies_topic(self.settings.topic_prefix)
        await self._ensure(replies, 1, None)
        return replies, tag_of(queue)

    async def _may_see(self, topic: str) -> bool:
        """Return whether a topic exists; an account without a right on it cannot send to it, but may send replies."""
        try:
            return await self.has_topic(topic)
        except AccessDeniedError:
            self._note_absent(topic)
            return False

    async def _send(self, message: Message, payload: Payload | None = None) -> None:
        """Store a message once, even if an earlier attempt to send it is in doubt.

        :raises CometMQError: it may not be stored.
        """
        if await self._was_stored(message):
            return
        try:
            result = await self._send_in_time(message)
        except CometMQError as error:
            self.note_failure(message, error)
            raise
        if result.recall_handle is not None and message.is_delayed and message.keys and payload is not None:
            _remember(self._handles, message.keys[0], (result.recall_handle, Recalled.of(payload)))

    def plain_message(self, queue: str, payload: Payload) -> Message | None:
        """Return the message for a queue with a known topic, or ``None`` if it needs more than to be sent."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        if topic not in self._topics or queue in self.private:
            return None
        message = to_message(topic, payload)
        return None if message.is_delayed or _publication(message) in self._doubts else message

    def note_failure(self, message: Message, error: CometMQError) -> bool:
        """Remember the broker that may have stored a message whose send failed; return whether its topic is gone."""
        if isinstance(error, ClientError) and error.code == ResponseCode.TOPIC_NOT_EXIST:
            self._topics.discard(message.topic)
            return True
        cause = error.__cause__ if isinstance(error, SendFailedError) else error
        if len(message.keys) > 1 and isinstance(cause, RemotingSendError | RemotingTimeoutError | RemotingClosedError):
            self._doubt(_publication(message), [cause.address])
        return False

    def note_interruption(self, queue: str, payload: Payload) -> None:
        """Remember the brokers, one of which may have stored a task whose send was interrupted in the caller."""
        topic, keys = topic_of_queue(self.settings.topic_prefix, queue), keys_of(payload)
        route = self.instance.routes.known(topic)
        if keys and route is not None:
            names = {queue.broker_name for queue in route.write_queues}
            found = {address for name in names if (address := self.instance.routes.brokers.master(name)) is not None}
            self._doubt((topic, keys[1]), sorted(found))

    async def _send_in_time(self, message: Message) -> SendResult:
        """Send a message, again while a broker is stopping or busy: Kombu would not wait before it tries again."""
        clock = self.instance.clock
        attempts = Attempts(clock, self.settings.send_timeout)
        while True:
            try:
                return await self.producer.send(message, timeout_s=attempts.left_s)
            except CometMQError as error:
                pause_s = attempts.pause_s(error)
            await clock.sleep(pause_s)

    async def _was_stored(self, message: Message) -> bool:
        """Return whether a broker has a message that is in doubt, which then is no longer so.

        :raises CometMQError: a broker does not answer.
        """
        key = _publication(message)
        doubt = self._doubts.get(key)
        if doubt is None:
            return False
        if self.instance.clock.monotonic() - doubt.tried_at > DOUBT_S:
            self._doubts.pop(key, None)
            return False
        self._doubt(key, doubt.addresses)
        topic = TIMER_TOPIC if message.is_delayed else message.topic
        found = [await self._query(address, topic, key[1]) for address in doubt.addresses]
        self._doubts.pop(key, None)
        return any(found)

    def _doubt(self, key: tuple[str, str], addresses: Iterable[str]) -> None:
        _remember(self._doubts, key, Doubt(tuple(addresses), self.instance.clock.monotonic()))

    async def _query(self, address: str, topic: str, key: str) -> list[MessageExt]:
        header = QueryMessageRequestHeader(topic, key, _MOST, 0, _LATER_MS)
        try:
            doing = f"searching for {key}"
            answer = await self.instance.call(address, RequestCode.QUERY_MESSAGE, header, doing=doing)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return []
            raise
        return [message for message in split_records(answer.body) if key in message.keys]

    async def recall(self, task_ids: Iterable[str]) -> dict[str, Recalled]:
        """Recall tasks that brokers hold; return those that were recalled, by their IDs."""
        recalled: dict[str, Recalled] = {}
        for task_id in task_ids:
            known = self._handles.pop(task_id, None)
            try:
                for handle, task in [known] if known is not None else await self._find_handles(task_id):
                    await self.producer.recall(handle)
                    recalled[task_id] = task
            except CometMQError as error:
                if isinstance(error, ClientError) and error.code == ResponseCode.ILLEGAL_OPERATION:
                    continue  # it is due
                log.warning("task %s is not recalled, and its worker has to reject it: %s", task_id, error)
        return recalled

    async def _find_handles(self, task_id: str) -> list[Waiting]:
        handles: list[Waiting] = []
        for broker, address in (await self.admin.masters()).items():
            for message in await self._query(address, TIMER_TOPIC, task_id):
                found = message.properties
                if found.get(REAL_TOPIC) and found.get(TIMER_OUT_MS, "").isdigit():
                    due_ms = int(found[TIMER_OUT_MS])
                    if due_ms > self.instance.clock.now_ms():
                        handle = RecallHandle(found[REAL_TOPIC], broker, due_ms, message.msg_id).encode()
                        handles.append((handle, recalled_of(message)))
        return handles

    # --- queues of this process ---

    async def declare_private(self, queue: str, *, sure: bool) -> None:
        """Begin a queue that only this process reads; it gets messages that are sent to its name from now on.

        :param sure: false if the queue gets a topic when it is bound to an exchange that is no fanout exchange.
        """
        if queue not in self.private:
            found = PrivateQueue(queue, self.puller, sure=sure)
            replies = replies_topic(self.settings.topic_prefix)
            await self._ensure(replies, 1, None)
            await found.bind("", Source(replies, tag_of(queue)))
            self.private.setdefault(queue, found)  # another thread may have declared it meanwhile

    async def bind_private(self, queue: str, key: str, source: Source) -> None:
        """Let a queue of this process also read the topic of an exchange, from now on."""
        await self._ensure(source.topic, 1, None)
        await self.private[queue].bind(key, source)

    async def forget(self, queue: str) -> None:
        """End a queue that only this process reads."""
        found = self.private.pop(queue, None)
        if found is not None:
            found.end()

    # --- queues with a topic ---

    async def size(self, queue: str) -> int:
        """Return the number of messages that wait in a queue."""
        return sum([end - at async for _, at, end in self._waiting(queue)])

    async def purge(self, queue: str) -> int:
        """Skip the messages that wait in a queue; return their number."""
        count = 0
        async for place, at, end in self._waiting(queue):  # at once, so that no worker that goes on is set back
            await self.admin.offsets.commit(self.settings.group, place, end)
            count += end - at
        return count

    async def _waiting(self, queue: str) -> AsyncIterator[tuple[MessageQueue, int, int]]:
        """Yield the queues of a topic with waiting messages, the group's offset in each, and its end."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        for name in (topic, pop_retry_topic(topic, self.settings.group)):
            try:
                places = await self.admin.queues(name)
            except RouteNotFoundError:
                continue
            for place in places:
                end = await self.admin.offsets.max(place)
                if not end:
                    continue
                at = await self.admin.offsets.committed(self.settings.group, place)
                at = await self.admin.offsets.min(place) if at is None else at
                if end > at:
                    yield place, at, end

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages."""
        topic = topic_of_queue(self.settings.topic_prefix, queue)
        for name in (topic, pop_retry_topic(topic, self.settings.group)):
            self._absent.pop(name, None)
            self._topics.discard(name)
            (data,) = await self.instance.routes.data_of([name])
            if data is not None:
                await self.admin.delete_topic(name)


def _publication(message: Message) -> tuple[str, str]:
    """Return a topic and a key that two publications share only if they are the same; without a task it is empty."""
    return message.topic, message.keys[1] if len(message.keys) > 1 else ""


def recalled_of(message: MessageExt) -> Recalled:
    """Return what has to hear of the recall of a task."""
    try:
        return Recalled.of(from_message(message))
    except StrangerError:
        return Recalled(None)


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    if len(table) > MAX_REMEMBERED:
        table.popitem(last=False)
