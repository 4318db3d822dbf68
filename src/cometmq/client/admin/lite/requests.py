"""Requests about lite topics: their parent topics and groups, their messages, and who reads them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from cometmq.client.admin.groups import GroupAdmin
from cometmq.client.errors import BrokerError
from cometmq.remoting.bodies import SubscriptionGroupConfig, TopicConfig
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.lite.bodies import (
    ExpireLiteTopicsResponseBody,
    GetLiteClientInfoResponseBody,
    GetLiteGroupInfoResponseBody,
    GetLiteTopicInfoResponseBody,
    GetLiteTopicsResponseBody,
    GetParentTopicInfoResponseBody,
    LiteTopicInfo,
)
from cometmq.remoting.lite.headers import (
    ExpireLiteTopicsRequestHeader,
    GetLiteClientInfoRequestHeader,
    GetLiteGroupInfoRequestHeader,
    GetLiteTopicInfoRequestHeader,
    GetLiteTopicsRequestHeader,
    GetParentTopicInfoRequestHeader,
)

T = TypeVar("T")

_TRIES: Final = 20
_BUSY_S: Final = 0.5
"""Time after which a broker that is saving its lite topics is asked again."""

MAX_NAMES: Final = 1_000
"""Maximum number of a client's lite topics in a response."""
_REQUESTS_OF_PAGE: Final = 10
"""Maximum number of requests for one page. Each compares up to 100,000 lite topics with the prefix."""


@dataclass(frozen=True)
class LitePlace:
    """A place in the list of a parent topic's lite topics: a broker and a position on it."""

    broker: str
    position: int


@dataclass(frozen=True)
class LitePage:
    """One page of a parent topic's lite topics."""

    lite_topics: list[tuple[str, LiteTopicInfo]]
    """Each lite topic with the name of its broker."""
    next: LitePlace | None
    """Place at which the next page begins, or None after the last page."""


class LiteAdmin(GroupAdmin):
    """Administers lite topics. Each broker of the parent topic answers for itself; answers are by broker name."""

    async def create_lite_topic(
        self, topic: str, *, queues: int = 4, expiration_minutes: int | None = None, cluster: str | None = None
    ) -> None:
        """Create a topic of the type LITE, or make a topic one; its lite topics come with their first messages.

        :param expiration_minutes: minutes without messages after which a lite topic is removed; -1 is never.
        :raises BrokerError: a broker does not know the type, or refuses the attributes.
        """
        change = "+message.type=LITE"
        if expiration_minutes is not None:
            change += f",+lite.topic.expiration={expiration_minutes}"
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        addresses = await self._targets(cluster)
        for address in addresses:
            await self.put_topic(config, address, attribute_change=change)
        await self.until_routed(topic, addresses)

    async def create_lite_group(
        self,
        group: str,
        topic: str,
        *,
        exclusive: bool = False,
        all_topics: bool = False,
        quota: int | None = None,
        retry_max_times: int = 16,
        cluster: str | None = None,
    ) -> None:
        """Create a consumer group that reads lite topics of one parent topic.

        :param exclusive: each lite topic has one member at a time: the last one that subscribed to it.
        :param all_topics: the members read all lite topics of the parent topic.
        :param quota: maximum number of lite topics to which one member subscribes.
        :param retry_max_times: number of retries, after which a message is moved to the dead-letter topic.
        :raises ValueError: the name is not allowed.
        """
        attributes = {"+lite.bind.topic": topic}
        if exclusive:
            attributes["+lite.sub.model"] = "Exclusive"
        if all_topics:
            attributes["+lite.sub.wildcard"] = "true"
        if quota is not None:
            attributes["+lite.sub.client.quota"] = str(quota)
        config = SubscriptionGroupConfig(group_name=group, retry_max_times=retry_max_times, attributes=attributes)
        await self.create_group(config, cluster=cluster)

    async def lite_parent(self, topic: str) -> dict[str, GetParentTopicInfoResponseBody]:
        """Return the number of a parent topic's lite topics, their expiration, and the groups that read them.

        :raises BrokerError: code 29: the topic is not of the type LITE.
        """
        header = GetParentTopicInfoRequestHeader(topic)
        code, doing = RequestCode.GET_PARENT_TOPIC_INFO, f"requesting the lite topics of {topic}"
        return await self._of_each(
            topic, lambda address: self._ask(GetParentTopicInfoResponseBody, address, code, header, doing)
        )

    async def lite_topic(self, topic: str, lite_topic: str) -> dict[str, GetLiteTopicInfoResponseBody]:
        """Return the offsets of one lite topic, and the clients that subscribe to it.

        :raises BrokerError: code 29: the topic is not of the type LITE.
        """
        header = GetLiteTopicInfoRequestHeader(topic, lite_topic)
        code, doing = RequestCode.GET_LITE_TOPIC_INFO, f"requesting lite topic {lite_topic} of {topic}"
        return await self._of_each(
            topic, lambda address: self._ask(GetLiteTopicInfoResponseBody, address, code, header, doing)
        )

    async def lite_client(
        self, topic: str, group: str, client_id: str, *, max_names: int = MAX_NAMES
    ) -> dict[str, GetLiteClientInfoResponseBody]:
        """Return the lite topics to which one client subscribes.

        :raises BrokerError: code 29: the group is bound to another topic; code 26: the group does not exist.
        """
        header = GetLiteClientInfoRequestHeader(topic, group, client_id, max_names)
        code, doing = RequestCode.GET_LITE_CLIENT_INFO, f"requesting the lite topics of client {client_id}"
        return await self._of_each(
            topic, lambda address: self._ask(GetLiteClientInfoResponseBody, address, code, header, doing)
        )

    async def lite_lag(
        self, topic: str, group: str, lite_topic: str | None = None, *, top: int = 20
    ) -> dict[str, GetLiteGroupInfoResponseBody]:
        """Return the messages that a group has not consumed: those of one lite topic, or the lite topics that lag most.

        :param top: maximum number of lite topics from each broker.
        :raises BrokerError: code 29: the group reads no lite topics; code 26: the group does not exist.
        """
        header = GetLiteGroupInfoRequestHeader(group, lite_topic, top)
        code, doing = RequestCode.GET_LITE_GROUP_INFO, f"requesting the lag of group {group}"
        return await self._of_each(
            topic, lambda address: self._ask(GetLiteGroupInfoResponseBody, address, code, header, doing)
        )

    async def lite_topics(
        self, topic: str, *, prefix: str = "", skip: int = 0, limit: int = 1_000
    ) -> dict[str, list[LiteTopicInfo]]:
        """Return the lite topics whose names begin with a prefix, in the order of each broker. Only CometMQ's brokers
        support this.

        :param skip: number of lite topics to leave out, broker after broker.
        :param limit: maximum number of lite topics in all; 0 for all.
        :raises BrokerError: code 29: the topic is not of the type LITE; code 3: the broker is Apache's.
        """
        end = skip + limit if limit else None
        seen = 0
        found: dict[str, list[LiteTopicInfo]] = {}
        for name, address in sorted((await self._brokers_of(topic)).items()):
            mine = found.setdefault(name, [])
            position = 0
            while position >= 0 and (end is None or seen < end):
                most = MAX_NAMES if end is None else min(MAX_NAMES, end - seen)
                header = GetLiteTopicsRequestHeader(topic, prefix, position, most)
                code, doing = RequestCode.GET_LITE_TOPICS, f"listing the lite topics of {topic}"
                position = -1
                with self._noting_unanswered():
                    page = await self._ask(GetLiteTopicsResponseBody, address, code, header, doing)
                    mine += page.lite_topics[max(skip - seen, 0) :]
                    seen += len(page.lite_topics)
                    position = page.next_position
        return found

    async def lite_page(
        self, topic: str, *, prefix: str = "", start: LitePlace | None = None, limit: int = 50
    ) -> LitePage:
        """Return one page of the lite topics whose names begin with a prefix, broker after broker, after a limited
        number of requests. A page may have fewer lite topics than the limit although more pages follow. Only CometMQ's
        brokers support this.

        :param start: the ``next`` of the page before; None for the first page.
        :param limit: maximum number of lite topics, from 1 to 1,000.
        :raises BrokerError: code 29: the topic is not of the type LITE; code 3: the broker is Apache's.
        """
        found: list[tuple[str, LiteTopicInfo]] = []
        requests = 0
        for name, address in sorted((await self._brokers_of(topic)).items()):
            if start is not None and name < start.broker:
                continue
            position = start.position if start is not None and name == start.broker else 0
            while position >= 0:
                if len(found) >= limit or requests == _REQUESTS_OF_PAGE:
                    return LitePage(found, LitePlace(name, position))
                requests += 1
                header = GetLiteTopicsRequestHeader(topic, prefix, position, min(limit - len(found), MAX_NAMES))
                code, doing = RequestCode.GET_LITE_TOPICS, f"listing the lite topics of {topic}"
                position = -1
                with self._noting_unanswered():
                    page = await self._ask(GetLiteTopicsResponseBody, address, code, header, doing)
                    found += [(name, info) for info in page.lite_topics]
                    position = page.next_position
        return LitePage(found, None)

    async def expire_lite_topics(
        self, topic: str, lite_topic: str | None = None, *, prefix: str | None = None, with_unread: bool = False
    ) -> dict[str, ExpireLiteTopicsResponseBody]:
        """Remove one lite topic, or all whose names begin with a prefix, without waiting for their expiration. Only
        CometMQ's brokers support this. Lite topics to which a client subscribes, or whose messages a client holds, are
        kept.

        :param with_unread: remove lite topics with messages that a group has not read, too; the messages are lost for
            groups of lite topics.
        :raises ValueError: both or neither of a lite topic and a prefix are given.
        :raises BrokerError: code 29: the topic is not of the type LITE; code 3: the broker is Apache's.
        """
        if (lite_topic is None) == (prefix is None):
            raise ValueError("give either a lite topic or a prefix")
        return await self._of_each(
            topic, lambda address: self._expire(address, topic, lite_topic, prefix, with_unread=with_unread)
        )

    async def _expire(
        self, address: str, topic: str, lite_topic: str | None, prefix: str | None, *, with_unread: bool
    ) -> ExpireLiteTopicsResponseBody:
        total = ExpireLiteTopicsResponseBody(next_position=0)
        tries = _TRIES
        while total.next_position >= 0:
            header = ExpireLiteTopicsRequestHeader(topic, lite_topic, prefix, with_unread, total.next_position)
            try:
                part = await self._ask(
                    ExpireLiteTopicsResponseBody,
                    address,
                    RequestCode.EXPIRE_LITE_TOPICS,
                    header,
                    f"removing lite topics of {topic}",
                )
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_BUSY or not tries:
                    raise
                tries -= 1
                await self.instance.clock.sleep(_BUSY_S)
                continue
            tries = _TRIES
            total.removed += part.removed
            total.read += part.read
            total.unread += part.unread
            total.next_position = part.next_position
        return total

    async def _of_each(self, topic: str, ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """Ask all brokers of a topic."""
        found: dict[str, T] = {}
        for name, address in sorted((await self._brokers_of(topic)).items()):
            with self._noting_unanswered():
                found[name] = await ask(address)
        return found
