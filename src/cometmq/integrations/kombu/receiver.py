"""Receives the messages of a channel's queues by POP, never more than the channel may hold.

A busy worker ends hundreds of tasks a second. So that each of them does not cost a request to acknowledge it, a request
for the next message and two changes of the thread, they are *gathered*: acknowledgements are sent together every
``_GATHER_S``, and messages are requested when half of the prefetch limit is free, or with the acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.simple.config import SimpleConsumerConfig
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
            invisible_s=settings.visibility_timeout,
            wait_s=settings.wait_time,
            renew_up_to_s=settings.renew_up_to,
            error_delay_s=_RECONNECT_S,
            gives_back_when_gone=True,
            retries_first=True,
        )
        instance = ClientInstance(settings.namesrv, security=settings.security)
        self._consumer = _Consumer(settings.group, config=config, instance=instance)
        self._loop = asyncio.get_running_loop()
        self._credit = credit
        self._enough = enough
        self._deliver = deliver
        self._ended: deque[PoppedMessage] = deque()
        """The messages whose acknowledgements are gathered."""
        self._is_gathering = False
        """True while a timer looks for them; only the event loop sets it."""
        self._task: asyncio.Task[None] | None = None
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
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._acknowledge()
        await asyncio.gather(*map(self.give_back, held()))
        await self._consumer.close()

    async def start(self, topic: str) -> None:
        """Receive the messages of a topic too.

        :raises BrokerError: the broker refuses, for example because the account lacks a right.
        """
        await self._consumer.subscribe(topic)
        try:
            if (credit := self._credit()) > 0:  # a missing right is raised here, not logged later
                self._deliver(self, await self._consumer.receive(min(credit, _MOST), wait_s=0, topic=topic))
        except BaseException:
            await self._consumer.unsubscribe(topic)
            raise
        if self._task is None:
            self._task = asyncio.create_task(self._receive())

    async def stop(self, topic: str) -> None:
        """Stop receiving the messages of a topic."""
        await self._consumer.unsubscribe(topic)

    def poke(self) -> None:
        """Look at the credit again; call it on the event loop."""
        self._changed.set()

    async def get(self, topic: str) -> PoppedMessage | None:
        """Return the next message of a topic, or ``None`` if there is none now.

        :raises BrokerError: the broker refuses, for example because the account lacks a right.
        """
        if topic not in self._consumer.topics:
            await self._consumer.subscribe(topic)
        found = await self._consumer.receive(1, wait_s=0, topic=topic)
        if not found and asyncio.get_running_loop().time() < self._expected_until:
            found = await self._consumer.receive(1, wait_s=_AGAIN_S, topic=topic)
        return found[0] if found else None

    async def _receive(self) -> None:
        failed = ""
        while True:
            try:
                while (room := self._room()) <= 0:
                    self._changed.clear()
                    if self._room() <= 0:
                        await self._changed.wait()
                self._deliver(self, await self._consumer.receive(min(room, _MOST)))
                failed = ""
            except CometMQError as error:
                level = logging.DEBUG if str(error) == failed else logging.ERROR
                log.log(level, "cannot receive messages, trying again: %s", worded(error))
                failed = str(error)
                await asyncio.sleep(_PAUSE_S)

    def _room(self) -> int:
        """Return how many messages to request now."""
        credit = self._credit()
        return 0 if self._ended and credit < self._enough() else credit

    # --- the ends of messages ---

    def ack_soon(self, message: PoppedMessage) -> None:
        """Acknowledge a message, without waiting for it; any thread may call this."""
        self._ended.append(message)
        if self._credit() == self._enough():
            self._loop.call_soon_threadsafe(self._changed.set)
        if not self._is_gathering:
            self._loop.call_soon_threadsafe(self._gather)

    def _gather(self) -> None:
        """Start the timer, unless it runs."""
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_later(_GATHER_S, self._look)

    def _look(self) -> None:
        """Acknowledge what was gathered, and look again a moment later; stop looking when there is nothing."""
        self._is_gathering = bool(self._ended)
        if self._ended:  # also what was added after the line above
            self._is_gathering = True
            self._acknowledge()
            self._loop.call_later(_GATHER_S, self._look)

    def _acknowledge(self) -> None:
        """Acknowledge the gathered messages."""
        messages = []
        with suppress(IndexError):
            while True:
                messages.append(self._ended.popleft())
        if not messages:
            return
        self._changed.set()

        try:
            self._consumer.ack_then(messages, _log_failed)
        except CometMQError as error:
            _log_failed(error, messages)

    async def give_back(self, message: PoppedMessage) -> None:
        """Let a message be delivered again at once; if that fails, it comes again when its time is over."""
        self._changed.set()
        self._expected_until = asyncio.get_running_loop().time() + _PAUSE_S
        try:
            await self._consumer.change_invisible(message, 0)
        except CometMQError as error:
            log.warning("message %s comes again later: %s", message.msg_id, error)

    async def reject(self, message: PoppedMessage, reason: str) -> None:
        """Make a message a dead letter; if that fails, it comes again when its time is over."""
        self._changed.set()
        place = f"message {message.msg_id} of topic {message.subscribed_topic}"
        try:
            await self._consumer.reject(message)
        except CometMQError as error:
            log.error("%s (%s) comes again, because it cannot become a dead letter: %s", place, reason, error)
            with suppress(CometMQError):  # ends its renewals in any case
                await self._consumer.change_invisible(message, self._consumer.config.invisible_s)
        else:
            log.error("%s is now a dead letter of group %s: %s", place, self._consumer.group, reason)


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
