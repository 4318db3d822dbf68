"""Message administration: queries, delayed messages and open transactions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.errors import BrokerError, OtherTopicError, UnknownBrokerError
from cometmq.message.hosts import addresses_of, format_address, parse_address, stored_ip
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import MessageExt, split_records
from cometmq.remoting.admin_bodies import (
    OpenTransaction,
    OpenTransactions,
    TimerMetrics,
    TopicTimerMetrics,
    WaitingMessage,
    WaitingMessages,
)
from cometmq.remoting.admin_headers import (
    GetOpenTransactionsRequestHeader,
    GetWaitingMessagesRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
)
from cometmq.remoting.bodies import BrokerData
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import QueryMessageRequestHeader, ViewMessageRequestHeader
from cometmq.threads import look_up

END_OF_TIME_MS: Final = 2**63 - 1
INDEX_UNIT_MS: Final = 1_000
"""Resolution of times in the index of Apache's brokers, which round times down."""
OPEN_TRANSACTIONS_PAGE: Final = 500
"""Maximum number of transactions requested at a time."""
WAITING_MESSAGES_PAGE: Final = 1_000
"""Maximum number of delayed messages requested at a time."""


class MessageAdmin(TopicAdmin):
    """Queries stored, delayed and half messages."""

    async def message_by_id(self, msg_id: str, topic: str | None = None) -> MessageExt:
        """Return the message with an offset id or, if ``topic`` is given, with a unique key.

        :raises BrokerError: the message was never stored, or is no longer stored.
        :raises ValueError: ``msg_id`` is not an offset id, and no message of ``topic`` has this unique key.
        :raises UnknownBrokerError: the offset id belongs to no broker of the topic or, if no topic is given, of the
            cluster.
        :raises OtherTopicError: the message with the offset id belongs to another topic.
        """
        if topic is not None:
            found = await self.query_message(topic, msg_id, max_messages=1, unique_key=True)
            if found:
                return found[0]
        brokers = await self._brokers() if topic is None else (await self.topic_route(topic)).broker_datas
        address, offset = await _parse_offset_id(msg_id, brokers)
        header, doing = ViewMessageRequestHeader(offset), f"searching for message {msg_id}"
        answer = await self._call(address, RequestCode.VIEW_MESSAGE_BY_ID, header, doing=doing)
        message = next(iter(split_records(answer)))
        if topic is not None and topic not in (message.stored_topic, message.topic):
            raise OtherTopicError(msg_id, topic, message.topic)
        return message

    async def _brokers(self) -> Iterable[BrokerData]:
        return (await self.cluster_info()).broker_addr_table.values()

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        max_messages: int = 32,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        unique_key: bool = False,
    ) -> list[MessageExt]:
        """Return a topic's messages with a key or unique key that were stored in a time range, oldest first.

        :raises RouteNotFoundError: no nameserver knows the topic.
        """
        header = QueryMessageRequestHeader(
            topic, key, max_messages, max(begin_ms - INDEX_UNIT_MS + 1, 0), end_ms, unique_key
        )
        doing = f"searching for key {key} in {topic}"
        found: list[MessageExt] = []
        for name, address in (await self._brokers_of(topic)).items():
            answer = b""
            try:
                with self._noting_unanswered():
                    answer = await self._call(address, RequestCode.QUERY_MESSAGE, header, doing=doing)
            except BrokerError as error:
                if error.code != ResponseCode.QUERY_NOT_FOUND:
                    raise
            # Apache's brokers compare only what is in the index: hashes of topics and keys, and whole seconds.
            found += (
                message
                for message in split_records(answer, name)
                if message.stored_topic == topic
                and (message.msg_id == key if unique_key else key in message.keys)
                and begin_ms <= message.store_timestamp <= end_ms
            )
        return sorted(found, key=lambda message: message.store_timestamp)[:max_messages]

    # --- any delay ---

    async def waiting(self, broker_address: str) -> dict[str, TopicTimerMetrics]:
        """Return the number of pending messages with arbitrary delays on a broker, by topic.

        An Apache RocketMQ 5 broker counts these messages, but does not report when they are due.

        :raises BrokerError: with code 3, the broker is older than RocketMQ 5.
        """
        code = RequestCode.GET_TIMER_METRICS
        return (await self._ask(TimerMetrics, broker_address, code, None, "asking what waits")).timing_count

    async def waiting_messages(
        self,
        broker_address: str,
        *,
        topic: str | None = None,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        limit: int | None = None,
    ) -> list[WaitingMessage]:
        """Return the pending messages with arbitrary delays on a CometMQ broker, sorted by due time.

        :param topic: only messages to this topic.
        :param begin_ms: only messages that are due at or after this time, ms since 1970.
        :param end_ms: only messages that are due before this time, ms since 1970.
        :param limit: maximum number of messages.
        :raises BrokerError: the broker is Apache's, which does not support the request.
        """
        found: list[WaitingMessage] = []
        code, doing = RequestCode.GET_WAITING_MESSAGES, "requesting the delayed messages"
        place: tuple[int, int] | None = (begin_ms, 0)
        while place is not None and (limit is None or len(found) < limit):
            wanted = WAITING_MESSAGES_PAGE if limit is None else min(WAITING_MESSAGES_PAGE, limit - len(found))
            header = GetWaitingMessagesRequestHeader(*place, end_ms, topic, wanted)
            page = await self._ask(WaitingMessages, broker_address, code, header, doing)
            found += page.messages
            place = None if page.next_due is None else (page.next_due, page.next_position or 0)
        return found

    async def timer_check_point(self, broker_address: str) -> int:
        """Return the time, in ms since 1970, up to which a broker has delivered messages with arbitrary delays.

        :raises BrokerError: with code 3, the broker is older than RocketMQ 5.
        """
        code = RequestCode.GET_TIMER_CHECK_POINT
        answer = await self._call(broker_address, code, doing="requesting the timer's progress")
        return int.from_bytes(answer[:8], "big", signed=True)

    # --- transactions ---

    async def open_transactions(
        self, broker_address: str, *, group: str | None = None, limit: int | None = None
    ) -> list[OpenTransaction]:
        """Return a CometMQ broker's transactions that have been neither committed nor rolled back.

        :param group: only transactions of this producer group.
        :param limit: maximum number of transactions.
        :raises BrokerError: the broker is Apache's, which does not support the request.
        """
        found: list[OpenTransaction] = []
        code, doing = RequestCode.GET_OPEN_TRANSACTIONS, "requesting the open transactions"
        offset: int | None = 0
        while offset is not None and (limit is None or len(found) < limit):
            wanted = OPEN_TRANSACTIONS_PAGE if limit is None else min(OPEN_TRANSACTIONS_PAGE, limit - len(found))
            header = GetOpenTransactionsRequestHeader(offset, wanted, group)
            page = await self._ask(OpenTransactions, broker_address, code, header, doing)
            found += page.transactions
            offset = page.next_offset
        return found

    async def resume_transaction(self, offset_msg_id: str) -> None:
        """Make the broker check a transaction again, which may be open or may have been given up.

        :param offset_msg_id: offset id of its message in ``TRANS_CHECK_MAX_TIME_TOPIC``, or of a half message.
        :raises ValueError: the id is not an offset id.
        :raises UnknownBrokerError: the id belongs to no broker of the cluster.
        :raises BrokerError: the message does not exist, or its transaction has ended (Apache's broker reopens it).
        """
        address, _ = await _parse_offset_id(offset_msg_id, await self._brokers())
        header = ResumeCheckHalfMessageRequestHeader(offset_msg_id)
        doing = f"resuming the transaction of {offset_msg_id}"
        await self._call(address, RequestCode.RESUME_CHECK_HALF_MESSAGE, header, doing=doing)


async def _parse_offset_id(offset_msg_id: str, brokers: Iterable[BrokerData]) -> tuple[str, int]:
    """Return the address and the log offset in an offset id, after checking that the address belongs to a broker.

    The request to this address is signed, so a foreign server would receive a signature that brokers accept.

    :param brokers: the brokers of the cluster.
    :raises ValueError: the id is not an offset id.
    :raises UnknownBrokerError: no broker of the cluster has this address.
    """
    ip, port, offset = decode_offset_msg_id(offset_msg_id)
    places = [parse_address(address) for broker in brokers for address in broker.broker_addrs.values()]
    hosts = sorted({host for host, known in places if known == port})
    for host in hosts:
        if stored_ip(host) == ip:  # the address has an IPv6 zone, which the id does not contain
            return format_address(host, port), offset
    if ip not in await look_up(_resolve_hosts, hosts):
        raise UnknownBrokerError(offset_msg_id)
    return format_address(ip, port), offset


def _resolve_hosts(hosts: Collection[str]) -> set[str]:
    """Resolve host names, because ids contain IP addresses even if brokers advertise host names."""
    found: set[str] = set()
    for host in hosts:
        try:
            found.update(filter(None, (stored_ip(str(info[4][0])) for info in addresses_of(host, None))))
        except OSError:
            continue
    return found
