"""Requests of a consumer of lite topics to the brokers of the parent topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from cometmq.client.errors import RemotingError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.lite.config import LiteTopicConfig, StartAt
from cometmq.client.serialization import DecodedMessage, Deserializer
from cometmq.message.message import split_records
from cometmq.message.pop_info import NORMAL_TOPIC, ReceiptHandle
from cometmq.message.properties import INNER_MULTI_QUEUE_OFFSET
from cometmq.message.record import RecordError
from cometmq.remoting.bodies import MessageQueue
from cometmq.remoting.client import DEFAULT_TIMEOUT_S
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import from_ext
from cometmq.remoting.lite.bodies import LiteSubscriptionAction, LiteSubscriptionDTO, encode_changes
from cometmq.remoting.lite.headers import (
    LiteSubscriptionCtlRequestHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
)
from cometmq.remoting.pop_requests import ack_request, change_request

_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND, ResponseCode.NO_MESSAGE)


class LiteMessage(DecodedMessage, eq=False, gc=True, kw_only=True):
    """A message of a lite topic; acknowledge it with :meth:`~cometmq.client.lite.consumer.LiteTopicConsumer.ack`."""

    handle: ReceiptHandle | None = None
    attempt: int = 1
    """The delivery attempt, starting at 1."""

    @property
    def offset(self) -> int:
        """The message's offset in its lite topic."""
        return int(self.properties[INNER_MULTI_QUEUE_OFFSET])


class LiteRequests:
    """The requests of one member of a group."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        topic: str,
        config: LiteTopicConfig,
        deserializer: Deserializer | None,
    ) -> None:
        self.instance = instance
        self._group = group
        self.topic = topic
        self.config = config
        self._deserializer = deserializer
        self._masters: dict[str, str] = {}
        self.on_new_master: Callable[[str], object] = _do_nothing
        """Called with the address of a master that replaces another one."""

    async def brokers(self) -> list[str]:
        """Return the names of the brokers with readable queues of the parent topic.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        routes = self.instance.routes
        route = routes.known(self.topic) or await routes.refresh(self.topic)
        found = list(dict.fromkeys(queue.broker_name for queue in route.read_queues))
        if not found:
            raise RouteNotFoundError(self.topic, "no queue is readable")
        return found

    async def subscribe(
        self, action: LiteSubscriptionAction, names: Iterable[str], *, start: StartAt | None = None, version: int = 0
    ) -> None:
        """Change the member's subscription at all brokers.

        :raises BrokerError: a broker refuses, for example because there are too many lite topics.
        :raises RemotingError: a broker does not answer.
        """
        change = LiteSubscriptionDTO(
            action=action,
            client_id=self.instance.client_id,
            group=self._group,
            topic=self.topic,
            lite_topic_set=list(names),
            offset_option=None if start is None else start.option,
            version=version,
        )
        body = encode_changes([change])
        doing = f"subscribing to lite topics of {self.topic}"
        asked = [
            self._call(name, RequestCode.LITE_SUBSCRIPTION_CTL, LiteSubscriptionCtlRequestHeader(), body, doing=doing)
            for name in await self.brokers()
        ]
        for outcome in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def pop(self, broker: str, max_messages: int, poll_ms: int) -> list[LiteMessage]:
        """Wait for messages of a broker up to ``poll_ms`` milliseconds; return an empty list if none came in time.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        config = self.config
        header = PopLiteMessageRequestHeader(
            client_id=self.instance.client_id,
            consumer_group=self._group,
            topic=self.topic,
            max_msg_num=max_messages,
            invisible_time=round(config.invisible_s * 1000),
            poll_time=poll_ms,
            born_time=0,  # a broker whose clock is ahead of this one refuses a pop as too late
        )
        address = await self._address(broker)
        timeout_s = poll_ms / 1000 + DEFAULT_TIMEOUT_S
        answer = await self.instance.remoting.invoke(address, RequestCode.POP_LITE_MESSAGE, header, timeout_s=timeout_s)
        if answer.code in _NOTHING:
            return []
        self.instance.expect(answer, address, f"requesting messages of lite topics of {self.topic}")
        try:
            found = from_ext(PopLiteMessageResponseHeader, answer.ext_fields)
            return self._messages(broker, found, answer.body)
        except (RecordError, ValueError, KeyError) as error:
            raise RemotingError(address, f"{address} returned malformed messages: {error}") from error

    def _messages(self, broker: str, header: PopLiteMessageResponseHeader, body: bytes) -> list[LiteMessage]:
        records = split_records(body, broker)
        counts = (header.order_count_info or "").split(";")
        if len(counts) != len(records):
            counts = ["0"] * len(records)
        found = []
        for record, count in zip(records, counts, strict=True):
            message = LiteMessage(
                *record.place, broker, deserializer=self._deserializer, attempt=int(count.rpartition(" ")[2] or 0) + 1
            )
            place = (header.pop_time, header.invisible_time, header.revive_qid, NORMAL_TOPIC, broker, 0)
            message.handle = ReceiptHandle(message.offset, *place, message.offset)
            found.append(message)
        return found

    async def ack(self, message: LiteMessage) -> None:
        """Acknowledge a message.

        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        handle = _handle_of(message)
        header = ack_request(handle, self.topic, self._group, lite_topic=message.lite_topic)
        await self._call(handle.broker_name, RequestCode.ACK_MESSAGE, header, doing="acknowledging a message")

    async def hide(self, message: LiteMessage, seconds: float, *, counts: bool = True) -> None:
        """Deliver a message again after some seconds.

        :param counts: False if the delivery must not count as an attempt; this holds for all messages that were popped
            together from the lite topic, and so does the time.
        :raises BrokerError: the broker refuses.
        :raises RemotingError: the broker does not answer.
        """
        handle = _handle_of(message)
        invisible_ms, lite_topic = round(seconds * 1000), message.lite_topic
        header = change_request(
            *(handle, self.topic, self._group, invisible_ms), lite_topic=lite_topic, suspend=not counts
        )
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        await self._call(handle.broker_name, code, header, doing="changing the time of a message")

    async def _call(self, broker: str, code: RequestCode, header: Any, body: bytes = b"", *, doing: str) -> None:
        await self.instance.call(await self._address(broker), code, header, body, doing=doing)

    async def _address(self, broker: str) -> str:
        address = await self.instance.master_of(MessageQueue(self.topic, broker, 0))
        before = self._masters.get(broker)
        self._masters[broker] = address
        if before not in (None, address):
            self.on_new_master(address)
        return address


def _handle_of(message: LiteMessage) -> ReceiptHandle:
    if message.handle is None:
        raise ValueError("the message was not received by this consumer, so it has no receipt handle")
    return message.handle


def _do_nothing(_address: str) -> None:
    pass
