"""Requests of a simple consumer to the brokers of its topics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from cometmq.client.consumer.config import ConsumeFromWhere
from cometmq.client.consumer.subscription import wanted
from cometmq.client.errors import (
    BrokerError,
    ClientError,
    ForkedError,
    MasterNotFoundError,
    RemotingClosedError,
    RemotingError,
    RemotingSendError,
    RemotingTimeoutError,
)
from cometmq.client.instance import ClientInstance
from cometmq.client.retries import NOT_NOW, Pauses
from cometmq.client.serialization import Deserializer
from cometmq.client.simple.config import SimpleConsumerConfig
from cometmq.client.simple.message import PoppedMessage, read_popped
from cometmq.message.pop_info import HandleError
from cometmq.message.record import RecordError
from cometmq.remoting.bodies import MessageQueue, SubscriptionData
from cometmq.remoting.client import DEFAULT_TIMEOUT_S, RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.headers import HeaderError, from_ext
from cometmq.remoting.pop_headers import (
    MAX,
    MIN,
    ChangeInvisibleTimeResponseHeader,
    NotificationRequestHeader,
    NotificationResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
)
from cometmq.remoting.pop_requests import ack_request, batch_ack, change_request, changed_handle, dead_letter_request

log = logging.getLogger(__name__)

_NOTHING: Final = frozenset(
    {
        ResponseCode.POLLING_TIMEOUT,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.NO_MESSAGE,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
    }
)
_BORN_LATER_MS: Final = 24 * 3600 * 1000
"""Time by which a pop that does not wait is born in the future: brokers refuse pops that are old by their own clock."""
_MOST_SHARED: Final = 1_000
"""Number of unanswered requests on a shared connection from which on waiting notifications use another one."""
_MOST_NOTIFICATIONS: Final = 65_536
"""Maximum number of notifications that wait on that connection."""
_PAUSES: Final = Pauses(0.05, 1.0)
"""Pauses before a request is repeated."""
_MAX_COPIES: Final = 2
"""Maximum number of dead letters of a message that is rejected once."""
_ELSEWHERE: Final = frozenset({ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.TOPIC_NOT_EXIST})
"""Codes of a broker that no longer has the topic, or is no longer its master."""
_LATER: Final = NOT_NOW | _ELSEWHERE | {ResponseCode.POLLING_FULL}


class Place(NamedTuple):
    """A topic on a broker."""

    topic: str
    broker: str


class Popped(NamedTuple):
    """The messages of a pop."""

    messages: list[PoppedMessage]
    others: list[PoppedMessage]
    """Messages whose tags have only the same hash as those of the subscription."""


def passes(error: Exception) -> bool:
    """Return whether a failed request may succeed later: the broker is away, or has too much to do."""
    if isinstance(error, RemotingError | MasterNotFoundError):
        return not isinstance(error, ForkedError | RemotingClosedError)
    return isinstance(error, BrokerError) and error.code in _LATER


class SimpleRequests:
    """The requests of one member of a group."""

    def __init__(
        self, instance: ClientInstance, group: str, config: SimpleConsumerConfig, deserializer: Deserializer | None
    ) -> None:
        self.instance = instance
        self.config = config
        self._group = group
        self._deserializer = deserializer
        is_first = config.consume_from_where is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
        self._init_mode = MIN if is_first else MAX
        self._waits: RemotingClient | None = None
        """The connections of pops that wait at brokers."""
        self._notifications: RemotingClient | None = None
        """The connections of notifications that wait at many places."""
        self._finished: list[RemotingClient] = []
        self._ahead_ms: dict[str, int] = {}
        """Milliseconds by which each broker's clock is ahead of this client's."""

    async def pop(
        self, place: Place, data: SubscriptionData, max_messages: int, invisible_ms: int, poll_ms: int
    ) -> Popped:
        """Wait for messages up to ``poll_ms`` milliseconds; return nothing if none came in time.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        clock = self.instance.clock
        header = PopMessageRequestHeader(
            consumer_group=self._group,
            topic=place.topic,
            queue_id=-1,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._born_ms(place.broker) if poll_ms else clock.now_ms() + _BORN_LATER_MS,
            init_mode=self._init_mode,
            exp_type=data.expression_type,
            exp=data.sub_string,
            owner=self.instance.client_id if self.config.gives_back_when_gone else None,
            retries_first=True if self.config.retries_first else None,
        )
        answer = await self._ask(place, RequestCode.POP_MESSAGE, header, poll_ms)
        if answer.code in _NOTHING:
            if self._has_time(place.broker, answer) or not poll_ms:
                return Popped([], [])
            return await self.pop(place, data, max_messages, invisible_ms, 0)  # refused as late: this clock is behind
        address = await self._address(place)
        self.instance.expect(answer, address, f"requesting messages of {place.topic}")
        try:
            head = from_ext(PopMessageResponseHeader, answer.ext_fields)
            found = read_popped(head, answer.body, *place, self._deserializer, clock)
        except (HandleError, HeaderError, RecordError) as error:
            raise RemotingError(address, f"{address} returned malformed messages: {error}") from error
        self._ahead_ms[place.broker] = head.pop_time - clock.now_ms()
        if not data.tags_set:
            return Popped(found, [])
        own = wanted(found, data)
        return Popped(own, [message for message in found if message not in own])

    def _has_time(self, broker: str, answer: RemotingCommand) -> bool:
        """Return whether an answer without messages has the time of the broker's clock, and remember it."""
        try:
            pop_time = from_ext(PopMessageResponseHeader, answer.ext_fields).pop_time
        except HeaderError:
            return False
        self._ahead_ms[broker] = pop_time - self.instance.clock.now_ms()
        return True

    async def has_message(self, place: Place, data: SubscriptionData, poll_ms: int) -> bool:
        """Wait up to ``poll_ms`` milliseconds until a pop would find a message; return whether it would.

        :raises BrokerError: the broker refuses, or holds too many requests.
        :raises RemotingError: the broker does not answer.
        """
        header = NotificationRequestHeader(
            consumer_group=self._group,
            topic=place.topic,
            queue_id=-1,
            poll_time=poll_ms,
            born_time=self._born_ms(place.broker),
            exp_type=data.expression_type,
            exp=data.sub_string,
        )
        answer = await self._ask(place, RequestCode.NOTIFICATION, header, poll_ms)
        address = await self._address(place)
        doing = f"waiting for messages of {place.topic}"
        try:
            head = from_ext(NotificationResponseHeader, self.instance.expect(answer, address, doing).ext_fields)
        except HeaderError as error:
            raise RemotingError(address, f"{address} returned a malformed response: {error}") from error
        if head.polling_full:
            raise BrokerError(address, ResponseCode.POLLING_FULL, "too many requests are waiting", doing)
        return head.has_msg

    async def acknowledge(self, broker: str, messages: Sequence[PoppedMessage]) -> None:
        """Acknowledge messages of one broker.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        place = Place(messages[0].subscribed_topic, broker)
        address = await self._address(place)
        doing = f"acknowledging {len(messages)} messages of {place.topic}"
        if len(messages) == 1:
            header = ack_request(messages[0].handle, place.topic, self._group)
            await self.instance.call(address, RequestCode.ACK_MESSAGE, header, doing=doing)
            return
        popped = [(message.subscribed_topic, message.queue_handle, message.queue_offset) for message in messages]
        body = msgspec.json.encode(batch_ack(broker, self._group, popped))
        await self.instance.call(address, RequestCode.BATCH_ACK_MESSAGE, None, body, doing=doing)

    async def change(self, message: PoppedMessage, invisible_ms: int) -> None:
        """Restart a message's invisible time.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        handle = message.handle
        address = await self._address(Place(message.subscribed_topic, handle.broker_name))
        header = change_request(handle, message.subscribed_topic, self._group, invisible_ms)
        code, doing = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, "changing the invisible time of a message"
        answer = await self.instance.call(address, code, header, doing=doing)
        try:
            changed = changed_handle(handle, from_ext(ChangeInvisibleTimeResponseHeader, answer.ext_fields))
        except HeaderError as error:
            raise RemotingError(address, f"{address} returned a malformed response: {error}") from error
        message.renew(changed, invisible_ms, self.instance.clock)

    async def give_back(self, messages: Sequence[PoppedMessage]) -> None:
        """Make messages visible again at once; brokers that do not answer do so when their time is over."""
        given = [self.change(message, 0) for message in messages]
        for outcome in await asyncio.gather(*given, return_exceptions=True):
            if isinstance(outcome, ClientError | RemotingError):
                log.info("cannot give back a message, which is received again later: %s", outcome)

    async def make_dead_letter(self, message: PoppedMessage) -> None:
        """Store a copy of a message in the group's dead-letter topic; repeat this as :meth:`until_answered`.

        A request whose answer was lost is repeated once, so there may be a second copy.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        unknown = 0

        def may_repeat(error: Exception) -> bool:
            nonlocal unknown
            unknown += isinstance(error, RemotingTimeoutError | RemotingSendError)
            return unknown < _MAX_COPIES and passes(error)

        await self.until_answered(partial(self._copy_to_dead_letters, message), may_repeat)

    async def _copy_to_dead_letters(self, message: PoppedMessage) -> None:
        handle, topic = message.handle, message.subscribed_topic
        address = await self._address(Place(topic, handle.broker_name))
        header = dead_letter_request(
            *(handle, topic, self._group), log_offset=message.commit_log_offset, message_id=message.msg_id
        )
        await self.instance.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, header, doing="rejecting a message")

    async def until_answered(
        self, work: Callable[[], Awaitable[None]], may_repeat: Callable[[Exception], bool] = passes
    ) -> None:
        """Repeat a request while its broker does not answer, for at most ``retry_s`` seconds.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        clock = self.instance.clock
        deadline = clock.monotonic() + self.config.retry_s
        failures = 0
        while True:
            try:
                return await work()
            except (ClientError, RemotingError) as error:
                failures += 1
                pause_s = _PAUSES.after(failures)
                if not may_repeat(error) or clock.monotonic() + pause_s > deadline:
                    raise
                await clock.sleep(pause_s)

    async def refresh(self, place: Place, error: Exception) -> None:
        """Request a topic's route again if a broker's response says that it has changed."""
        if isinstance(error, BrokerError) and error.code in _ELSEWHERE:
            await self.instance.routes.refresh(place.topic)

    async def _ask(self, place: Place, code: RequestCode, header: Any, poll_ms: int) -> RemotingCommand:
        timeout_s = poll_ms / 1000 + DEFAULT_TIMEOUT_S
        address = await self._address(place)
        remoting = self.instance.remoting
        shared = remoting.connected(address)
        if code is RequestCode.NOTIFICATION and shared is not None and shared.in_flight >= _MOST_SHARED:
            if self._notifications is None:
                self._notifications = self.instance.new_connections(max_in_flight=_MOST_NOTIFICATIONS)
            remoting = self._notifications
        elif poll_ms and code is RequestCode.POP_MESSAGE:
            remoting = self._waits = self._waits or self.instance.new_connections()
        return await remoting.invoke(address, code, header, timeout_s=timeout_s)

    def end_waits(self) -> None:
        """Take back the pops that wait at brokers; those that were just answered still return."""
        waits, self._waits = self._waits, None
        if waits is not None:
            waits.finish()
            self._finished = [client for client in self._finished if client.connections] + [waits]

    async def close(self) -> None:
        """Close the connections of pops that were taken back, and those of notifications."""
        self.end_waits()
        others = [] if self._notifications is None else [self._notifications]
        for client in self._finished + others:
            await client.close()

    async def _address(self, place: Place) -> str:
        return await self.instance.master_of(MessageQueue(place.topic, place.broker, 0))

    def _born_ms(self, broker: str) -> int:
        """Return the current time by the broker's clock, as far as it is known."""
        return self.instance.clock.now_ms() + self._ahead_ms.get(broker, 0)
