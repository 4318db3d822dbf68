"""Warns when members of a consumer group have different subscriptions.

A broker keeps only one table of subscriptions for each group: the table of the member whose heartbeat arrived last (for
a single topic, the newest subscription). The members share the queues regardless of their subscriptions, so a member
receives messages that another member wants. Its own subscription filters these messages, and the messages that it
filters out are lost for the group. A member sees the other members' subscriptions only in the broker's table: if that
table differs from the member's own, another member wrote it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from cometmq.client.errors import AccessDeniedError
from cometmq.client.instance import ClientInstance
from cometmq.errors import CometMQError
from cometmq.message.names import RETRY_PREFIX
from cometmq.remoting.admin_bodies import ConsumerConnection
from cometmq.remoting.admin_headers import GetConsumerConnectionListRequestHeader
from cometmq.remoting.bodies import SubscriptionData, decode_body
from cometmq.remoting.codes import RequestCode

log = logging.getLogger(__name__)


class SubscriptionComparison:
    """Compares a member's subscriptions with its group's at regular intervals.

    :param subscriptions: topic → subscription; the member changes this mapping.
    """

    def __init__(self, instance: ClientInstance, group: str, subscriptions: Mapping[str, SubscriptionData]) -> None:
        self._instance = instance
        self._group = group
        self._subscriptions = subscriptions
        self._before: dict[str, SubscriptionData] = {}
        self._warned = ""

    async def keep(self, interval_s: float) -> None:
        """Compare subscriptions every ``interval_s`` seconds until cancelled or denied access."""
        while True:
            await self._instance.clock.sleep(interval_s)
            try:
                await self._compare()
            except AccessDeniedError as error:
                log.info("cannot compare the subscriptions of group %s: %s", self._group, error)
                return
            except CometMQError as error:
                log.debug("cannot compare the subscriptions of group %s: %s", self._group, error)

    async def _compare(self) -> None:
        own = {topic: found for topic, found in self._subscriptions.items() if not topic.startswith(RETRY_PREFIX)}
        is_settled, self._before = own == self._before, own
        address = self._broker(own)
        if address is None or not is_settled:  # a new subscription may be on its way to the broker
            return
        header = GetConsumerConnectionListRequestHeader(self._group)
        doing = f"requesting the members of group {self._group}"
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await self._instance.call(address, code, header, doing=doing)
        known = decode_body(ConsumerConnection, answer.body)
        found = ""
        if len({connection.client_id for connection in known.connection_set}) > 1:
            found = difference(own, known.subscription_table)
        if found and found != self._warned:
            log.warning(
                "members of group %s subscribe differently, so the group loses messages: %s "
                "(give all members the same subscriptions; `cometmq group describe` shows them)",
                self._group,
                found,
            )
        self._warned = found or self._warned

    def _broker(self, own: Mapping[str, SubscriptionData]) -> str | None:
        """Return the address of a broker that receives this member's heartbeats."""
        routes = self._instance.routes
        for topic in sorted(own):
            route = routes.known(topic)
            for broker in route.data.broker_datas if route is not None else ():
                if (address := routes.brokers.reader(broker.broker_name)) is not None:
                    return address
        return None


def difference(own: Mapping[str, SubscriptionData], known: Mapping[str, SubscriptionData]) -> str:
    """Describe how the group's subscriptions differ from a member's; return an empty string if they are equal."""
    wanted = {topic: f"{found.expression_type} {found.sub_string}" for topic, found in own.items()}
    others = {
        topic: f"{found.expression_type} {found.sub_string}"
        for topic, found in known.items()
        if not topic.startswith(RETRY_PREFIX)
    }
    differing = sorted(topic for topic in wanted.keys() | others.keys() if wanted.get(topic) != others.get(topic))
    if not differing:
        return ""
    topic = differing[0]
    more = f", and {len(differing) - 1} more topics" if len(differing) > 1 else ""
    mine, other = wanted.get(topic, "none"), others.get(topic, "none")
    return f"topic {topic}: this member's subscription is {mine}, another's is {other}{more}"
