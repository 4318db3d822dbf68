"""Receives the messages of a channel's queues by POP; the channel never gets more than it may hold.

A busy worker ends hundreds of tasks a second. So that each of them does not cost a request to acknowledge it, a request
for the next message and two changes of the thread, they are *gathered*: acknowledgements are sent together every
``_GATHER_S``, and messages are requested when half of the prefetch limit is free, or with the acknowledgements.

With a small limit, these are still many requests. So a receiver whose channel has ended messages all the time of late
also takes messages *ahead*: as many as the channel will end in the next moment. They wait in the receiver, and the
channel gets them when it ends others. If it ends none for ``_STILL_S``, another worker shall have them: they are given
back, and nothing is taken ahead for some time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from cometmq.client.consumer.subscription import ALL, TAG
from cometmq.client.instance import ClientInstance
from cometmq.client.simple.config import MAX_INVISIBLE_S, SimpleConsumerConfig
from cometmq.client.simple.consumer import SimpleConsumer
from cometmq.client.simple.message import PoppedMessage
from cometmq.errors import CometMQError
from cometmq.integrations.kombu.errors import worded
from cometmq.integrations.kombu.settings import Settings
from cometmq.remoting.admin_bodies import ConsumerRunningInfo
from cometmq.remoting.bodies import ConsumerData

log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
_RECONNECT_S: Final = 0.2
"""Time in seconds after which a lost connection is opened again, before the broker gives the messages back."""
_MOST: Final = 32
_GATHER_S: Final = 0.004
"""Maximum time in seconds for which an acknowledgement waits for others."""
_MOST_NAMED: Final = 10
"""Maximum number of messages that a line in the log names."""
_AGAIN_S: Final = 0.3
"""Time in seconds for which a single receive waits for a message that was just given back."""
_PERIOD_S: Final = 0.025
"""Time in seconds for which messages are taken ahead."""
_PERIODS: Final = 4
"""Number of periods in each of which messages must have ended."""
_AHEAD_WAIT_S: Final = 0.2
"""Time in seconds for which a broker holds a request that also takes messages ahead. A consumer thinks that the
broker's clock is wrong if much shorter waits end a little early.
"""
_STILL_S: Final = 0.2
_FEW: Final = 8
"""Maximum number of deliveries of a message that waits ahead: half of those that a group allows by default."""
_NOT_AHEAD_S: Final = 60.0
"""Time in seconds for which nothing is taken ahead after messages were given back."""


class _Consumer(SimpleConsumer):
    """A member of a group whose members receive from different queues, which their heartbeats do not name.

    Brokers take the subscriptions of a group's members for contradictory if they differ.
    """

    @property
    def heartbeat(self) -> ConsumerData:
        """Return the consumer's part of a heartbeat."""
        return ConsumerData(group_name=self.group, consume_type="CONSUME_ACTIVELY", subscription_data_set=[])

    def running_info(self) -> ConsumerRunningInfo:
        """Return the consumer's state, for administrators."""
        return ConsumerRunningInfo(properties={"PROP_CONSUME_TYPE": self.heartbeat.consume_type})

    async def subscribe_all(self, topics: Sequence[str]) -> None:
        """Subscribe to several topics, with fewer requests than one by one; see :meth:`subscribe`."""
        await self._subscribe([self._subscription(topic, ALL, TAG) for topic in topics])

    def reads(self, topic: str) -> bool:
        """Return whether the consumer subscribes to a topic."""
        return topic in self._subscriptions


class Receiver:
    """One member of the group, which receives from several topics; create it on the event loop.

    :param credit: returns how many more messages the channel may hold.
    :param enough: returns the credit that is worth a request at once.
    :param deliver: called with the receiver and messages that have arrived together.
    """

    def __init__(
        self,
        settings: Settings,
        credit: Callable[[], int],
        enough: Callable[[], int],
        deliver: Callable[[Receiver, Sequence[PoppedMessage]], object],
    ) -> None:
        config = SimpleConsumerConfig(
            invisible_s=min(settings.visibility_timeout, MAX_INVISIBLE_S),
            wait_s=settings.wait_time,
            renew_up_to_s=settings.renew_up_to,
            error_delay_s=_RECONNECT_S,
            gives_back_when_gone=True,
            retries_first=True,
        )
        instance = ClientInstance(settings.namesrv, security=settings.security)
        self._consumer = _Consumer(settings.group, config=config, instance=instance)
        self._loop = asyncio.get_running_loop()
        self._few_deliveries = min(int(settings.max_deliveries) // 2, _FEW)
        self._credit = credit
        self._enough = enough
        self._deliver = deliver
        self._ended: deque[PoppedMessage] = deque()
        """The messages whose acknowledgements are gathered."""
        self._is_gathering = False
        """True while a timer looks for them; only the event loop sets it."""
        self._ahead: deque[PoppedMessage] = deque()
        self._passing = threading.RLock()  # a signal handler may interrupt its holder, and acknowledge a message
        self._paces: deque[int] = deque(maxlen=_PERIODS)
        """The number of messages that ended in each of the last periods."""
        self._period = 0
        self._pace = 0
        """The number of messages that have ended in the current period."""
        self._last_end = 0.0
        self._not_ahead_until = 0.0
        self._task: asyncio.Task[None] | None = None
        self._to_start: list[str] = []
        self._starting: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        """The error of topics that could not be started, until someone waits for them."""
        self._changed = asyncio.Event()
        self._expected_until = 0.0
        """The time until which a message that was given back may still be on its way."""

    async def open(self) -> None:
        """Join the group.

        :raises RemotingError: no nameserver answers.
        """
        await self._consumer.start()

    async def close(self, held: Callable[[], Iterable[PoppedMessage]]) -> None:
        """Receive no more, give back the messages that ``held`` then returns, and leave the group."""
        self._to_start.clear()
        if self._starting is not None:
            self._starting.cancel()
        await self._start_ended()
        await self._pause()
        self._acknowledge()
        await asyncio.gather(*map(self.give_back, [*held(), *self._take_ahead()]))
        self._acknowledge()  # what other threads have ended meanwhile
        await self._consumer.close()

    def start(self, topic: str) -> None:
        """Begin to receive the messages of a topic too; call it on the event loop. Many topics need few requests."""
        self._to_start.append(topic)
        if self._starting is None or self._starting.done():
            self._starting = self._loop.create_task(self._start_all())

    async def started(self) -> None:
        """Wait until the messages of all topics are received.

        :raises BrokerError: the broker refuses, for example because the account lacks a right.
        """
        await self._start_ended()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _start_ended(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})

    async def _start_all(self) -> None:
        while self._to_start:
            topics, self._to_start = self._to_start, []
            new = [topic for topic in dict.fromkeys(topics) if not self._consumer.reads(topic)]
            if new:
                try:
                    await self._start(new)
                except Exception as error:
                    log.debug("cannot begin to receive from %d topics: %s", len(new), error)
                    self._failure = error

    async def _start(self, topics: Sequence[str]) -> None:
        await self._pause()  # two requests would each use the whole credit
        try:
            await self._consumer.subscribe_all(topics)
            for topic in topics:
                if (credit := self._credit()) > 0:  # a missing right is raised here, not logged later
                    self._give(await self._consumer.receive(min(credit, _MOST), wait_s=0, topic=topic))
        except BaseException:
            for topic in topics:
                await self._consumer.unsubscribe(topic)
            raise
        finally:
            self._task = asyncio.create_task(self._receive())

    async def _pause(self) -> None:
        """Receive nothing; messages that are on their way come with the next request."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def stop(self, topic: str) -> None:
        """Stop receiving the messages of a topic."""
        await self._start_ended()
        await self._consumer.unsubscribe(topic)
        await asyncio.gather(*map(self.give_back, self._take_ahead(topic)))

    def poke(self) -> None:
        """Look at the credit again; call it on the event loop."""
        self._pass_on()
        self._changed.set()

    async def get(self, topic: str) -> PoppedMessage | None:
        """Return the next message of a topic, or ``None`` if there is none now.

        :raises BrokerError: the broker refuses, for example because the account lacks a right.
        """
        if not self._consumer.reads(topic):
            await self._consumer.subscribe(topic)
        found = await self._consumer.receive(1, wait_s=0, topic=topic)
        if not found and asyncio.get_running_loop().time() < self._expected_until:
            found = await self._consumer.receive(1, wait_s=_AGAIN_S, topic=topic)
        return found[0] if found else None

    def put_back(self, message: PoppedMessage | None) -> None:
        """Put back the outcome of :meth:`get`, which its caller did not see; call it on the event loop."""
        if message is not None:
            self._consumer.give_back([message])

    async def _receive(self) -> None:
        failed = ""
        while self._consumer.is_receiving:
            try:
                while (room := self._room(most := self._most_ahead())) <= 0:
                    self._changed.clear()
                    if self._room(most) <= 0:
                        await self._changed.wait()
                found = await self._consumer.receive(min(room, _MOST), wait_s=_AHEAD_WAIT_S if most else None)
                if not most:
                    self._give(found)
                elif found:
                    self._take(found)
                else:
                    self._paces.clear()
                failed = ""
            except CometMQError as error:
                level = logging.DEBUG if str(error) == failed else logging.ERROR
                log.log(level, "cannot receive messages, trying again: %s", worded(error))
                failed = str(error)
                await asyncio.sleep(_PAUSE_S)

    def _room(self, most: int) -> int:
        """Return how many messages to request now, ``most`` of them ahead."""
        room = self._credit() - len(self._ahead) + most
        return 0 if (self._ended or self._ahead) and room < self._enough() + most // 2 else room

    # --- messages that are taken ahead ---

    def _most_ahead(self) -> int:
        """Return how many messages may be taken ahead: as many as ended in the slowest of the last periods."""
        now = self._loop.time()
        is_steady = len(self._paces) == _PERIODS and _period_at(now) <= self._period + 1
        return min(*self._paces, _MOST) if is_steady and now >= self._not_ahead_until else 0

    def _note_ends(self, count: int, now: float) -> None:
        """Count messages that have ended; a period without any begins anew."""
        period = _period_at(now)
        if period > self._period + 1:
            self._paces.clear()
        elif period > self._period:
            self._paces.append(self._pace)
        if period > self._period:
            self._period, self._pace = period, 0
        self._pace += count

    def _take(self, messages: Sequence[PoppedMessage]) -> None:
        """Give the channel as many messages as it may hold; the others wait.

        Those that were already delivered often do not wait: giving them back could make them dead letters.
        """
        few = self._few_deliveries
        self._give([message for message in messages if message.delivery_attempt > few])
        self._ahead.extend(message for message in messages if message.delivery_attempt <= few)
        self._pass_on()
        if self._ahead:
            self._gather()

    def _pass_on(self) -> None:
        """Give the channel messages that wait, if it may hold more; any thread may call this."""
        with self._passing:
            row: list[PoppedMessage] = []
            credit = self._credit()
            with suppress(IndexError):
                while len(row) < credit:
                    row.append(self._ahead.popleft())
            self._give(row)

    def _give(self, messages: Sequence[PoppedMessage]) -> None:
        """Give the channel messages for which it had room when they were requested."""
        with self._passing:
            if messages:
                self._deliver(self, messages)

    def _take_ahead(self, topic: str | None = None) -> list[PoppedMessage]:
        """Remove and return the messages that wait, or those of a topic."""
        with self._passing:
            taken = [message for message in self._ahead if topic in (None, message.subscribed_topic)]
            for message in taken:
                self._ahead.remove(message)
        return taken

    # --- the ends of messages ---

    def ack_soon(self, message: PoppedMessage) -> None:
        """Acknowledge a message, without waiting for it; any thread may call this."""
        self._ended.append(message)
        if self._ahead:
            self._pass_on()
        elif self._credit() == self._enough():
            self._loop.call_soon_threadsafe(self._changed.set)
        if not self._is_gathering:
            self._loop.call_soon_threadsafe(self._gather)

    def _gather(self) -> None:
        """Start the timer, unless it runs."""
        if not self._is_gathering:
            self._is_gathering = True
            self._last_end = self._loop.time()
            self._loop.call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        """Acknowledge what was gathered, and look again a moment later; stop looking when there is nothing."""
        self._is_gathering = False
        count, now = len(self._ended), self._loop.time()  # also what was added after the line above
        if count:
            self._last_end = now
            self._note_ends(count, now)
            self._acknowledge()
        elif self._ahead and now - self._last_end >= _STILL_S:
            self._not_ahead_until = now + _NOT_AHEAD_S
            for message in self._take_ahead():
                self._consumer.instance.spawn(self.give_back(message))
        if count or self._ahead:
            self._is_gathering = True
            self._loop.call_later(_GATHER_S, self._look)

    def _acknowledge(self) -> None:
        """Acknowledge the gathered messages."""
        messages = []
        with suppress(IndexError):
            while True:
                messages.append(self._ended.popleft())
        if not messages:
            return
        self.poke()
        try:
            self._consumer.ack_then(messages, _log_failed)
        except CometMQError as error:
            _log_failed(error, messages)

    async def give_back(self, message: PoppedMessage) -> None:
        """Let a message be delivered again at once; if that fails, it comes again when its time is over."""
        self.poke()
        self._expected_until = asyncio.get_running_loop().time() + _PAUSE_S
        try:
            await self._consumer.change_invisible(message, 0)
        except CometMQError as error:
            log.warning("message %s comes again later: %s", message.msg_id, error)

    async def reject(self, message: PoppedMessage, reason: str) -> None:
        """Make a message a dead letter; if that fails, it comes again when its time is over."""
        self.poke()
        place = f"message {message.msg_id} of topic {message.subscribed_topic}"
        try:
            await self._consumer.reject(message)
        except CometMQError as error:
            log.error("%s (%s) comes again, because it cannot become a dead letter: %s", place, reason, error)
            with suppress(CometMQError):  # ends its renewals in any case
                await self._consumer.change_invisible(message, self._consumer.config.invisible_s)
        else:
            log.error("%s is now a dead letter of group %s: %s", place, self._consumer.group, reason)


def _period_at(now: float) -> int:
    return int(now / _PERIOD_S)


def _log_failed(error: BaseException | None, messages: Sequence[PoppedMessage]) -> None:
    """Log an error and the messages that are not acknowledged because of it."""
    if error is None:
        return
    ids: dict[str, list[str]] = {}
    for message in messages[:_MOST_NAMED]:
        ids.setdefault(message.subscribed_topic, []).append(message.msg_id)
    named = "; ".join(f"topic {topic}: {', '.join(found)}" for topic, found in ids.items())
    more = "; and others" if len(messages) > _MOST_NAMED else ""
    log.warning("%d messages may be delivered again (%s%s): %s", len(messages), named, more, error)
