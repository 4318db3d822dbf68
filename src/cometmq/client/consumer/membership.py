"""Rebalancing: computes a member's share of the queues, on notifications and at intervals (``RebalanceService``).

Theory of operation. Every member computes the shares of all members from the same two sorted lists: the queues of the
topic's route, and the client ids that a broker knows for the group. So members agree without communicating with each
other as soon as their lists are the same; before that, a queue may have two readers or none (see
:mod:`cometmq.client.consumer.process_queue_table`). A rebalance happens after each notice of a broker, after each
change of a route, and at intervals. If a list is not available, the queues of that topic remain as they are. Topics are
rebalanced in parallel, so a broker that does not answer delays only its own topics. Between the last check of the
member's state and the new share nothing is awaited, so neither a close nor an unsubscribe can happen in between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from cometmq.client.background import Spawn
from cometmq.client.consumer.agreement import SubscriptionComparison
from cometmq.client.consumer.config import ReadConfig
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX
from cometmq.remoting.bodies import ConsumerIdList, MessageQueue, SubscriptionData, decode_body
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import RemotingError
from cometmq.remoting.headers import GetConsumerListByGroupRequestHeader

log = logging.getLogger(__name__)

Assigned = Callable[[str, set[MessageQueue], bool], None]
"""A function called with a topic, the queues to read, and whether the group has other members."""


class Membership:
    """Rebalances one member's share of the queues.

    :param subscriptions: topic → subscription; the member changes this mapping.
    :param spawn: runs background work until the consumer ends.
    :param broadcast: every member reads every queue; no broker is asked.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: ReadConfig,
        assigned: Assigned,
        subscriptions: Mapping[str, SubscriptionData],
        spawn: Spawn,
        *,
        broadcast: bool = False,
    ) -> None:
        self._instance = instance
        self._group = group
        self._strategy = config.allocate_strategy
        self._interval_s = config.rebalance_interval_s
        self._assigned = assigned
        self._broadcast = broadcast
        self._topics: set[str] = set()
        self._again = asyncio.Event()
        self._agreement = SubscriptionComparison(instance, group, subscriptions)
        self._spawn = spawn
        self._tasks: list[asyncio.Task[None]] = []
        self._is_over = False
        instance.routes.on_change.append(self._route_changed)

    async def start(self, topics: Iterable[str]) -> None:
        """Request the routes, send a heartbeat, rebalance once, and then rebalance in the background.

        :raises RouteNotFoundError: none of the topics exists.
        """
        self._topics.update(topics)
        missing: RouteNotFoundError | None = None
        found = False
        for topic in sorted(self._topics):
            is_retry = topic.startswith(RETRY_PREFIX)
            try:
                await (self._instance.routes.get(topic) if is_retry else self._instance.routes.get_soon(topic))
                found = found or not is_retry
            except RouteNotFoundError as error:
                missing = missing if is_retry else error
        if missing is not None and not found:
            raise missing
        await self._instance.send_heartbeats()
        await self.rebalance()
        if not self._is_over:
            agreement = self._agreement.keep(self._interval_s)
            self._tasks = [self._spawn(self._keep()), self._spawn(agreement)]

    async def add(self, topic: str) -> None:
        """Add a topic to be rebalanced."""
        self._topics.add(topic)
        await self._instance.send_heartbeats()
        self.soon()

    async def remove(self, topic: str) -> None:
        """Remove a topic."""
        self._topics.discard(topic)
        self._assigned(topic, set(), False)
        await self._instance.send_heartbeats()

    async def stop(self) -> None:
        """Stop rebalancing."""
        if self._is_over:
            return
        self._is_over = True
        self._instance.routes.on_change.remove(self._route_changed)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def soon(self) -> None:
        """Rebalance as soon as possible."""
        self._again.set()

    def _route_changed(self, topic: str) -> None:
        if topic in self._topics:
            self._again.set()

    async def _keep(self) -> None:
        clock = self._instance.clock
        while True:
            timer = clock.call_later(self._interval_s, self._again.set)
            try:
                await self._again.wait()
            finally:
                timer.cancel()
            self._again.clear()
            await self.rebalance()

    async def rebalance(self) -> None:
        """Rebalance every topic; if this fails for a topic, its queues remain as they are."""
        await asyncio.gather(*(self._try_to_rebalance(topic) for topic in sorted(self._topics)))

    async def _try_to_rebalance(self, topic: str) -> None:
        try:
            await self._rebalance(topic)
        except RouteNotFoundError as error:
            if not topic.startswith(RETRY_PREFIX):
                log.warning("cannot rebalance group %s: %s", self._group, error)
        except CometMQError as error:
            log.warning("cannot rebalance group %s: %s", self._group, error)
        except Exception:
            log.exception("cannot rebalance group %s in topic %s; its queues remain as they are", self._group, topic)

    async def _rebalance(self, topic: str) -> None:
        route = await self._instance.routes.get(topic)
        if self._broadcast:
            share: set[MessageQueue] | None = set(route.read_queues)
            is_shared = False
        else:
            members = await self._members([broker.broker_name for broker in route.data.broker_datas])
            if not members or not route.read_queues:
                return
            share = self._share(topic, route.read_queues, sorted(members))
            is_shared = len(members) > 1
        # the topic may have been unsubscribed in the meantime
        if share is not None and topic in self._topics and not self._is_over:
            self._assigned(topic, share, is_shared)

    def _share(self, topic: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> set[MessageQueue] | None:
        """Return the share that the strategy computes, limited to this topic's queues."""
        try:
            chosen = self._strategy(self._group, self._instance.client_id, queues, members)
            return {queue for queue in chosen if queue.topic == topic}
        except BaseException:
            log.exception("the allocation strategy of group %s failed; the queues remain as they are", self._group)
            return None

    async def _members(self, broker_names: Iterable[str]) -> set[str]:
        header = GetConsumerListByGroupRequestHeader(self._group)
        for name in broker_names:
            address = self._instance.routes.brokers.reader(name)
            if address is None:
                continue
            try:
                doing = f"requesting the members of group {self._group}"
                answer = await self._instance.call(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, doing=doing)
                return set(decode_body(ConsumerIdList, answer.body).consumer_id_list)
            except (BrokerError, RemotingError) as error:
                log.info("cannot rebalance group %s: %s", self._group, error)
        return set()
