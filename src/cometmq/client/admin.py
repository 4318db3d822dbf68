"""Administration: topics, groups, offsets, messages, clusters (``DefaultMQAdminExt``)."""

from __future__ import annotations

from typing import Final, Self

from cometmq.client.admin_requests import AdminRequests
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.offsets import Offsets
from cometmq.client.progress import ConsumeProgress, QueueProgress
from cometmq.message.hosts import format_address
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import MessageExt, split_records
from cometmq.message.names import AUTO_CREATE_TOPIC, check_group, check_topic
from cometmq.properties_file import parse_properties
from cometmq.remoting.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerIdList,
    ConsumeStats,
    GroupList,
    HARuntimeInfo,
    KVTable,
    MessageQueue,
    OpenTransaction,
    OpenTransactions,
    ProducerConnection,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TimerMetrics,
    TopicConfig,
    TopicConfigSerializeWrapper,
    TopicList,
    TopicRouteData,
    TopicStatsTable,
    TopicTimerMetrics,
    WaitingMessage,
    WaitingMessages,
    encode_body,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import (
    CreateTopicRequestHeader,
    DeleteSubscriptionGroupRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumeStatsRequestHeader,
    GetOpenTransactionsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetTopicStatsInfoRequestHeader,
    GetWaitingMessagesRequestHeader,
    QueryMessageRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
    ResetOffsetRequestHeader,
    ResumeCheckHalfMessageRequestHeader,
    ViewMessageRequestHeader,
)
from cometmq.remoting.security import Security

TIMEOUT_S: Final = 5.0
END_OF_TIME_MS: Final = 2**63 - 1
OPEN_TRANSACTIONS_PAGE: Final = 500
"""Transactions asked for at once."""
WAITING_MESSAGES_PAGE: Final = 1_000
"""Waiting messages asked for at once."""


class Admin:
    """Looks after a cluster. Every call may raise ``BrokerError`` (refused) and ``RemotingError`` (no answer).

    :param namesrv: ``host:port;host:port``; default ``$NAMESRV_ADDR``, else ``127.0.0.1:9876``.
    :param timeout_s: seconds for each request.
    :param security: credentials and TLS of its own instance; default: what the environment says.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        instance: ClientInstance | None = None,
        timeout_s: float = TIMEOUT_S,
        security: Security | None = None,
    ) -> None:
        self.instance = ClientInstance.given_or_new(instance, namesrv, security)
        self.offsets = Offsets(self.instance, timeout_s)
        self._ask = AdminRequests(self.instance, timeout_s)

    async def __aenter__(self) -> Self:
        self.instance.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.instance.release()

    # --- cluster ---

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers that the nameserver knows."""
        return await self._ask.cluster_info()

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """brokerName → address of its master, of one cluster or of all."""
        return await self._ask.masters(cluster)

    async def runtime_info(self, broker_address: str) -> dict[str, str]:
        """What a broker says about itself (Apache's 28 keys and more)."""
        table = await self._ask.broker(
            KVTable, broker_address, RequestCode.GET_BROKER_RUNTIME_INFO, None, "asking for runtime information"
        )
        return table.table

    async def broker_config(self, broker_address: str) -> dict[str, str]:
        """The configuration of a broker, by the keys of ``broker.conf``."""
        code = RequestCode.GET_BROKER_CONFIG
        text = await self._ask.call(broker_address, code, doing="asking for the configuration")
        return {key: value for _, key, value in parse_properties(text.decode("utf-8", "replace"))}

    async def ha_status(self, broker_address: str) -> HARuntimeInfo:
        """How far the slaves of a master are: of CometMQ, or of RocketMQ 5."""
        code = RequestCode.GET_BROKER_HA_STATUS
        return await self._ask.broker(HARuntimeInfo, broker_address, code, None, "asking for its slaves")

    # --- transactions ---

    async def open_transactions(
        self, broker_address: str, *, group: str | None = None, limit: int | None = None
    ) -> list[OpenTransaction]:
        """The transactions of a CometMQ broker that are neither committed nor rolled back.

        :param group: of this producer group only.
        :param limit: at most so many.
        :raises BrokerError: the broker is Apache's, which cannot tell.
        """
        found: list[OpenTransaction] = []
        offset: int | None = 0
        while offset is not None and (limit is None or len(found) < limit):
            wanted = OPEN_TRANSACTIONS_PAGE if limit is None else min(OPEN_TRANSACTIONS_PAGE, limit - len(found))
            header = GetOpenTransactionsRequestHeader(offset, wanted, group)
            page = await self._ask.broker(
                OpenTransactions,
                broker_address,
                RequestCode.GET_OPEN_TRANSACTIONS,
                header,
                "asking for open transactions",
            )
            found += page.transactions
            offset = page.next_offset
        return found

    async def resume_transaction(self, offset_msg_id: str) -> None:
        """Let producers be asked anew about a transaction that was given up, or that is open.

        :param offset_msg_id: of its message in ``TRANS_CHECK_MAX_TIME_TOPIC``, or of a half message.
        :raises ValueError: it is no offset id.
        :raises BrokerError: there is no such message, or its transaction is over (Apache's broker begins it anew).
        """
        ip, port, _ = decode_offset_msg_id(offset_msg_id)
        await self._ask.call(
            format_address(ip, port),
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheckHalfMessageRequestHeader(offset_msg_id),
            doing=f"resuming the transaction of {offset_msg_id}",
        )

    async def waiting(self, broker_address: str) -> dict[str, TopicTimerMetrics]:
        """The messages with a delay of their own that wait at a broker, by topic.

        A broker of Apache RocketMQ 5 counts them, but does not say when they are due.

        :raises BrokerError: among others code 3, of a broker before RocketMQ 5.
        """
        doing = "asking what waits"
        metrics = await self._ask.broker(TimerMetrics, broker_address, RequestCode.GET_TIMER_METRICS, None, doing)
        return metrics.timing_count

    async def waiting_messages(
        self,
        broker_address: str,
        *,
        topic: str | None = None,
        begin_ms: int = 0,
        end_ms: int = END_OF_TIME_MS,
        limit: int | None = None,
    ) -> list[WaitingMessage]:
        """The messages with a delay of their own that wait at a CometMQ broker, in the order in which they are due.

        :param topic: only those that will stand in this topic.
        :param begin_ms: only those that are due from then on …
        :param end_ms: … and before this.
        :param limit: at most so many.
        :raises BrokerError: the broker is Apache's, which cannot tell.
        """
        found: list[WaitingMessage] = []
        place: tuple[int, int] | None = (begin_ms, 0)
        while place is not None and (limit is None or len(found) < limit):
            wanted = WAITING_MESSAGES_PAGE if limit is None else min(WAITING_MESSAGES_PAGE, limit - len(found))
            header = GetWaitingMessagesRequestHeader(*place, end_ms, topic, wanted)
            page = await self._ask.broker(
                WaitingMessages,
                broker_address,
                RequestCode.GET_WAITING_MESSAGES,
                header,
                "asking which messages wait",
            )
            found += page.messages
            place = None if page.next_due is None else (page.next_due, page.next_position or 0)
        return found

    async def timer_check_point(self, broker_address: str) -> int:
        """Until when (ms since 1970) a broker has delivered the messages with a delay of their own.

        :raises BrokerError: among others code 3, of a broker before RocketMQ 5.
        """
        code = RequestCode.GET_TIMER_CHECK_POINT
        answer = await self._ask.call(broker_address, code, doing="asking how far the timer is")
        return int.from_bytes(answer[:8], "big", signed=True)

    # --- topics ---

    async def topics(self) -> list[str]:
        """The names of all topics that the nameserver knows, sorted; retry and dead-letter topics among them."""
        listed = await self._ask.namesrv(
            TopicList, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, "asking for the topics"
        )
        return sorted(listed.topic_list)

    async def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        write_queues: int | None = None,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker_address: str | None = None,
        wait_s: float = TIMEOUT_S,
    ) -> None:
        """Create or change a topic on one broker, or on all masters of a cluster, or of all.

        :param queues: queues to read, and to write unless ``write_queues`` says otherwise.
        :param perm: 6 read and write, 4 read, 2 write.
        :param wait_s: seconds to wait until the nameserver names all of them for it; 0 does not wait.
        :raises ValueError: the name is not allowed.
        :raises ClientError: the nameserver knows no master.
        """
        wrong = check_topic(topic)
        if wrong is not None:
            raise ValueError(wrong)
        header = CreateTopicRequestHeader(
            topic=topic,
            default_topic=AUTO_CREATE_TOPIC,
            read_queue_nums=queues,
            write_queue_nums=queues if write_queues is None else write_queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            order=order,
            topic_sys_flag=0,
        )
        addresses = await self._ask.targets(cluster, broker_address)
        for address in addresses:
            doing = f"creating topic {topic}"
            await self._ask.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, doing=doing)
        await self._until_routed(topic, set(addresses), wait_s)

    async def _until_routed(self, topic: str, addresses: set[str], wait_s: float) -> None:
        clock = self.instance.clock
        deadline = clock.monotonic() + wait_s
        while clock.monotonic() < deadline:
            try:
                route = await self.instance.routes.refresh(topic)
            except RouteNotFoundError:
                route = None
            if route is not None:
                known = {address for broker in route.data.broker_datas for address in broker.broker_addrs.values()}
                if addresses <= known:
                    return
            await clock.sleep(0.05)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages on all masters, and at every nameserver."""
        for address in await self._ask.targets(cluster, None):
            header = DeleteTopicRequestHeader(topic)
            await self._ask.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, header, doing=f"deleting topic {topic}")
        for address in self.instance.routes.namesrv:
            gone = DeleteTopicFromNamesrvRequestHeader(topic)
            await self._ask.call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, gone, doing=f"deleting topic {topic}")
        self.instance.routes.forget(topic)

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where a topic lives.

        :raises RouteNotFoundError: nobody knows it.
        """
        return (await self.instance.routes.refresh(topic)).data

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read, sorted.

        :raises RouteNotFoundError: nobody knows it.
        """
        return (await self.instance.routes.refresh(topic)).read_queues

    async def topic_configs(self, broker_address: str) -> dict[str, TopicConfig]:
        """The configuration of every topic of a broker."""
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        return (
            await self._ask.broker(TopicConfigSerializeWrapper, broker_address, code, None, "asking for the topics")
        ).topic_config_table

    async def topic_stats(self, topic: str) -> TopicStatsTable:
        """First and last offset and time of the last message of every queue."""
        merged = TopicStatsTable(offset_table={})
        for address in await self._ask.brokers_of(topic):
            header = GetTopicStatsInfoRequestHeader(topic)
            code = RequestCode.GET_TOPIC_STATS_INFO
            stats = await self._ask.broker(TopicStatsTable, address, code, header, f"asking for statistics of {topic}")
            merged.offset_table.update(stats.offset_table)
        return merged

    # --- groups ---

    async def create_group(
        self, config: SubscriptionGroupConfig | str, *, cluster: str | None = None, broker_address: str | None = None
    ) -> None:
        """Create or change a consumer group on one broker, or on all masters of a cluster, or of all.

        :raises ValueError: the name is not allowed.
        """
        group = SubscriptionGroupConfig(group_name=config) if isinstance(config, str) else config
        wrong = check_group(group.group_name)
        if wrong is not None:
            raise ValueError(wrong)
        for address in await self._ask.targets(cluster, broker_address):
            await self._ask.call(
                address,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                body=encode_body(group),
                doing=f"creating group {group.group_name}",
            )

    async def groups(self, broker_address: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """Name → configuration of the consumer groups of a broker, or of all masters."""
        found: dict[str, SubscriptionGroupConfig] = {}
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for address in await self._ask.targets(None, broker_address):
            wrapper = await self._ask.broker(SubscriptionGroupWrapper, address, code, None, "asking for the groups")
            found.update(wrapper.subscription_group_table)
        return dict(sorted(found.items()))

    async def delete_group(self, group: str, *, remove_offsets: bool = False, cluster: str | None = None) -> None:
        """Delete a consumer group, and if wished its offsets, on all masters."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets)
        for address in await self._ask.targets(cluster, None):
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            await self._ask.call(address, code, header, doing=f"deleting group {group}")

    async def consumer_ids(self, group: str) -> list[str]:
        """The client ids of the members of a group, sorted; empty when nobody is there."""
        found: set[str] = set()
        header = GetConsumerListByGroupRequestHeader(group)
        for address in await self._ask.targets(None, None):
            try:
                code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
                listed = await self._ask.broker(ConsumerIdList, address, code, header, "asking for the members")
            except BrokerError:
                continue
            found.update(listed.consumer_id_list)
        return sorted(found)

    async def consumer_connection(self, group: str, broker_address: str | None = None) -> ConsumerConnection:
        """Who consumes as a group, and with which subscriptions.

        :raises BrokerError: with code 206, nobody does.
        """
        return await self._ask.first_answer(
            ConsumerConnection,
            broker_address,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            GetConsumerConnectionListRequestHeader(group),
            f"asking who consumes as {group}",
        )

    async def producer_connection(self, group: str, broker_address: str | None = None) -> ProducerConnection:
        """Who produces as a group.

        :raises BrokerError: nobody does.
        """
        return await self._ask.first_answer(
            ProducerConnection,
            broker_address,
            RequestCode.GET_PRODUCER_CONNECTION_LIST,
            GetProducerConnectionListRequestHeader(group),
            f"asking who produces as {group}",
        )

    async def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that have consumed a topic."""
        found: set[str] = set()
        for address in await self._ask.brokers_of(topic):
            header = QueryTopicConsumeByWhoRequestHeader(topic)
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            listed = await self._ask.broker(GroupList, address, code, header, f"asking who consumes {topic}")
            found.update(listed.group_list)
        return sorted(found)

    # --- offsets ---

    async def consume_progress(self, group: str, topic: str | None = None) -> ConsumeProgress:
        """How far a group is, in one topic or in all that it has consumed."""
        queues: list[QueueProgress] = []
        tps = 0.0
        failure: BrokerError | None = None
        addresses = await self._ask.targets(None, None) if topic is None else await self._ask.brokers_of(topic)
        for address in addresses:
            header = GetConsumeStatsRequestHeader(group, topic)
            try:
                code = RequestCode.GET_CONSUME_STATS
                stats = await self._ask.broker(ConsumeStats, address, code, header, f"asking how far {group} is")
            except BrokerError as error:
                failure = error
                continue
            tps += stats.consume_tps
            queues += (
                QueueProgress(queue, wrapper.broker_offset, wrapper.consumer_offset, wrapper.last_timestamp)
                for queue, wrapper in stats.offset_table.items()
            )
        if not queues and failure is not None:
            raise failure
        return ConsumeProgress(group, tuple(sorted(queues, key=lambda progress: progress.queue)), tps)

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Let a group go on at the messages stored around a time; -1 means the end of every queue.

        Members that are online are moved by the broker; when nobody is, the offsets are committed here.

        :param force: also move queues forward, over messages not yet consumed.
        """
        if not await self.consumer_ids(group):
            return await self._commit_at_time(group, topic, timestamp_ms, force)
        moved: dict[MessageQueue, int] = {}
        for address in await self._ask.brokers_of(topic):
            header = ResetOffsetRequestHeader(topic, group, timestamp_ms, force)
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            doing = f"resetting {group} in {topic}"
            try:
                body = await self._ask.broker(ResetOffsetBody, address, code, header, doing)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                # Apache knows a group only once it has committed in every queue.
                await self._commit_everywhere(group, topic)
                body = await self._ask.broker(ResetOffsetBody, address, code, header, doing)
            moved.update(body.offset_table)
        return moved

    async def _commit_everywhere(self, group: str, topic: str) -> None:
        for queue in await self.queues(topic):
            await self.offsets.commit(group, queue, await self.offsets.committed(group, queue) or 0)

    async def _commit_at_time(self, group: str, topic: str, timestamp_ms: int, force: bool) -> dict[MessageQueue, int]:
        moved: dict[MessageQueue, int] = {}
        for queue in await self.queues(topic):
            if timestamp_ms < 0:
                offset = await self.offsets.max(queue)
            else:
                offset = await self.offsets.at_time(queue, timestamp_ms)
            before = await self.offsets.committed(group, queue)
            if force or before is None or offset <= before:
                await self.offsets.commit(group, queue, offset)
                moved[queue] = offset
        return moved

    # --- messages ---

    async def message_by_id(self, msg_id: str, topic: str | None = None) -> MessageExt:
        """The message with an offset id, or, where ``topic`` is given, with a unique key.

        :raises BrokerError: it is not there (any more).
        :raises ValueError: neither an offset id nor a topic to look in.
        """
        if topic is not None:
            found = await self.query_message(topic, msg_id, max_messages=1, unique_key=True)
            if found:
                return found[0]
        ip, port, offset = decode_offset_msg_id(msg_id)
        address = format_address(ip, port)
        header = ViewMessageRequestHeader(offset)
        doing = f"looking for message {msg_id}"
        answer = await self._ask.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header, doing=doing)
        return next(iter(split_records(answer)))

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
        """Messages of a topic with a key, or with a client id (``unique_key``), stored within a time; oldest first.

        :raises RouteNotFoundError: nobody knows the topic.
        """
        header = QueryMessageRequestHeader(topic, key, max_messages, begin_ms, end_ms, unique_key)
        found: list[MessageExt] = []
        for name, address in (await self._ask.named_brokers_of(topic)).items():
            doing = f"looking for key {key} in {topic}"
            try:
                answer = await self._ask.call(address, RequestCode.QUERY_MESSAGE, header, doing=doing)
            except BrokerError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    continue
                raise
            found += (message for message in split_records(answer, name) if _has(message, key, unique_key))
        return sorted(found, key=lambda message: message.store_timestamp)[:max_messages]


def _has(message: MessageExt, key: str, unique_key: bool) -> bool:
    """Whether it really is one that was asked for: the index compares hashes only."""
    return message.msg_id == key if unique_key else key in message.keys
