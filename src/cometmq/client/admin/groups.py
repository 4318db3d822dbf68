"""Administration of consumer and producer groups, and of their offsets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import UnsetType

from cometmq.client.admin.topics import TopicAdmin
from cometmq.client.errors import BrokerError
from cometmq.message.names import check_group
from cometmq.remoting.admin_bodies import (
    ConsumerConnection,
    ConsumerRunningInfo,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    ProducerConnection,
    ProducerTableInfo,
    ProgressSums,
    ProgressSumsQuestion,
)
from cometmq.remoting.admin_headers import (
    DeleteSubscriptionGroupRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumeStatsInBrokerHeader,
    GetConsumeStatsRequestHeader,
    GetProducerConnectionListRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    ResetOffsetRequestHeader,
)
from cometmq.remoting.bodies import (
    ConsumerIdList,
    MessageQueue,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    decode_body,
    encode_body,
    encode_json,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetConsumerListByGroupRequestHeader

GROUPS_PER_REQUEST: Final = 1_000
"""Maximum number of groups in a progress request, which keeps it below 130 KB."""


class QueueProgress(msgspec.Struct, frozen=True):
    """A group's progress in one queue."""

    queue: MessageQueue
    broker_offset: int
    """The offset that the next message will get."""
    consumer_offset: int
    """The offset that the group reads next."""
    last_timestamp: int
    """Store time of the last message that the group read, in ms since 1970; 0 if the message has been deleted."""
    in_flight: int = 0
    """Number of messages that members have popped but not acknowledged."""
    visible_again_ms: int | None = None
    """The earliest time at which one of them becomes visible again, in ms since 1970; ``None`` if it is not known."""

    @property
    def lag(self) -> int:
        """Return the number of messages that have not been consumed yet."""
        return self.broker_offset - self.consumer_offset


def in_flight_of(wrapper: OffsetWrapper) -> int:
    """Return the number of messages in a queue that a group has popped but not acknowledged."""
    pulled = wrapper.pull_offset
    return 0 if isinstance(pulled, UnsetType) else max(pulled - wrapper.consumer_offset, 0)


class ConsumeProgress(msgspec.Struct, frozen=True):
    """A group's progress in all its queues."""

    group: str
    queues: tuple[QueueProgress, ...]
    consume_tps: float

    @property
    def lag(self) -> int:
        """Return the number of messages in all queues that have not been consumed yet."""
        return sum(queue.lag for queue in self.queues)


class GroupAdmin(TopicAdmin):
    """Creates, lists, resets and deletes groups."""

    async def create_group(
        self, config: SubscriptionGroupConfig | str, *, cluster: str | None = None, broker_address: str | None = None
    ) -> None:
        """Create or update a consumer group on one broker, on the masters of a cluster, or on all masters.

        :raises ValueError: the name is not allowed.
        """
        group = SubscriptionGroupConfig(group_name=config) if isinstance(config, str) else config
        wrong = check_group(group.group_name)
        if wrong is not None:
            raise ValueError(wrong)
        code, doing = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, f"creating group {group.group_name}"
        for address in await self._targets(cluster, broker_address):
            await self._call(address, code, body=encode_body(group), doing=doing)

    async def groups(self, broker_address: str | None = None) -> dict[str, SubscriptionGroupConfig]:
        """Return the consumer groups' configurations on one broker or on all masters, by group name."""
        found: dict[str, SubscriptionGroupConfig] = {}
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for address in await self._targets(None, broker_address):
            with self._noting_unanswered():
                wrapper = await self._ask(SubscriptionGroupWrapper, address, code, None, "requesting the groups")
                found.update(wrapper.subscription_group_table)
        return dict(sorted(found.items()))

    async def group_configs(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Return one group's configuration by broker name, without brokers that lack the group or do not know the
        request (RocketMQ 4).
        """
        header, code = GetSubscriptionGroupConfigRequestHeader(group), RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
        found: dict[str, SubscriptionGroupConfig] = {}
        for name, address in (await self.masters()).items():
            with self._noting_unanswered(), suppress(BrokerError):
                config = await self._ask(SubscriptionGroupConfig, address, code, header, f"requesting group {group}")
                found[name] = config
        return found

    async def delete_group(self, group: str, *, remove_offsets: bool = False, cluster: str | None = None) -> None:
        """Delete a consumer group on all masters; also delete its offsets if ``remove_offsets`` is set."""
        header = DeleteSubscriptionGroupRequestHeader(group, remove_offsets)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        for address in await self._targets(cluster):
            await self._call(address, code, header, doing=f"deleting group {group}")

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the sorted client ids of a group's members; the list is empty if there are none."""
        found: set[str] = set()
        header, code = GetConsumerListByGroupRequestHeader(group), RequestCode.GET_CONSUMER_LIST_BY_GROUP
        for address in await self._targets():
            try:
                listed = await self._ask(ConsumerIdList, address, code, header, "requesting the members")
            except BrokerError:
                continue
            found.update(listed.consumer_id_list)
        return sorted(found)

    async def consumer_connection(self, group: str, broker_address: str | None = None) -> ConsumerConnection:
        """Return a consumer group's members and their subscriptions.

        :raises BrokerError: with code 206, the group has no members.
        """
        header, code = GetConsumerConnectionListRequestHeader(group), RequestCode.GET_CONSUMER_CONNECTION_LIST
        return await self._ask_first(
            ConsumerConnection, broker_address, code, header, f"requesting the members of group {group}"
        )

    async def consumer_running_info(
        self, group: str, client_id: str, broker_address: str | None = None, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """Return the subscriptions, queues and rates of a group member, which a broker requests from the member.

        :param stack: include the stacks of its threads.
        :raises BrokerError: no broker knows the member, or the member does not answer.
        """
        header = GetConsumerRunningInfoRequestHeader(group, client_id, stack)
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        return await self._ask_first(ConsumerRunningInfo, broker_address, code, header, f"asking {client_id}")

    async def producer_connection(self, group: str, broker_address: str | None = None) -> ProducerConnection:
        """Return the members of a producer group.

        :raises BrokerError: the group has no producers.
        """
        header, code = GetProducerConnectionListRequestHeader(group), RequestCode.GET_PRODUCER_CONNECTION_LIST
        return await self._ask_first(
            ProducerConnection, broker_address, code, header, f"requesting the producers in group {group}"
        )

    async def producers(self, broker_address: str) -> ProducerTableInfo:
        """Return all producers connected to a broker, by group.

        :raises BrokerError: the broker is older than RocketMQ 4.9.3.
        """
        code = RequestCode.GET_ALL_PRODUCER_INFO
        return await self._ask(ProducerTableInfo, broker_address, code, None, "requesting the producers")

    # --- offsets ---

    async def progress_of_all_groups(self, broker_address: str) -> ConsumeStatsList:
        """Return the progress of every group on a broker."""
        header, code = GetConsumeStatsInBrokerHeader(is_order=False), RequestCode.GET_BROKER_CONSUME_STATS
        return await self._ask(ConsumeStatsList, broker_address, code, header, "requesting the progress of all groups")

    async def progress_sums(
        self, broker_address: str, groups: Iterable[str], *, with_topics: bool = False
    ) -> ProgressSums:
        """Return groups' progress on a CometMQ broker, summed by topic.

        :param with_topics: include the number of messages ever stored in each topic on the broker.
        :raises BrokerError: with code 3, the broker is Apache's or too old for the request.
        """
        found = ProgressSums()
        code, doing = RequestCode.GET_PROGRESS_SUMS, "requesting the progress of groups"
        wanted = list(groups)
        while wanted or with_topics:
            question = ProgressSumsQuestion(wanted[:GROUPS_PER_REQUEST], with_topics)
            answer = await self._call(broker_address, code, body=encode_json(question), doing=doing)
            sums = decode_body(ProgressSums, answer)
            found.groups.update(sums.groups)
            found.topics.update(sums.topics)
            wanted = wanted[len(sums.groups) if question.groups else 0 :]
            with_topics = False
        return found

    async def progress_at(self, group: str, broker_address: str, topic: str | None = None) -> ConsumeStats:
        """Return a group's progress on one broker, in one topic or in all its topics."""
        header, doing = GetConsumeStatsRequestHeader(group, topic), f"requesting the progress of group {group}"
        return await self._ask(ConsumeStats, broker_address, RequestCode.GET_CONSUME_STATS, header, doing)

    async def consume_progress(self, group: str, topic: str | None = None) -> ConsumeProgress:
        """Return a group's progress in one topic or in all its topics."""
        queues: list[QueueProgress] = []
        tps = 0.0
        failure: BrokerError | None = None
        addresses = await self._targets() if topic is None else (await self._brokers_of(topic)).values()
        for address in addresses:
            try:
                with self._noting_unanswered():
                    stats = await self.progress_at(group, address, topic)
                    tps += stats.consume_tps
                    queues += (
                        QueueProgress(
                            queue,
                            wrapper.broker_offset,
                            wrapper.consumer_offset,
                            wrapper.last_timestamp,
                            in_flight_of(wrapper),
                            None if isinstance(wrapper.visible_again, UnsetType) else wrapper.visible_again,
                        )
                        for queue, wrapper in stats.offset_table.items()
                    )
            except BrokerError as error:
                failure = error
        if not queues and failure is not None:
            raise failure
        return ConsumeProgress(group, tuple(sorted(queues, key=lambda progress: progress.queue)), tps)

    async def reset_offset(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Reset a group's offsets to the messages stored at a given time; -1 means the end of every queue.

        The broker resets members that are online; if there are no members, the offsets are committed directly.

        :param force: also move queues forward, which skips messages that are not consumed.
        """
        if not await self.consumer_ids(group):
            return await self._commit_at_time(group, topic, timestamp_ms, force)
        moved: dict[MessageQueue, int] = {}
        header, code = (
            ResetOffsetRequestHeader(topic, group, timestamp_ms, force),
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        )
        doing = f"resetting {group} in {topic}"
        for address in (await self._brokers_of(topic)).values():
            try:
                body = await self._ask(ResetOffsetBody, address, code, header, doing)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                # Apache's broker knows a group only after it has committed in every queue.
                await self._commit_everywhere(group, topic)
                body = await self._ask(ResetOffsetBody, address, code, header, doing)
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
