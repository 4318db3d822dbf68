"""The facts about a group that decide whether it consumes a message, each of which servers may refuse to tell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cometmq.client.admin import Admin, QueueProgress
from cometmq.client.admin.members import connection_of
from cometmq.client.admin.several import gathered
from cometmq.client.diagnosis.checks import Question, Unavailable, tried
from cometmq.client.diagnosis.place import by_unique_key
from cometmq.client.errors import BrokerError, RouteNotFoundError
from cometmq.client.trace.reader import Consumption, way_of
from cometmq.message.hosts import stored_ip
from cometmq.message.message import MessageExt
from cometmq.message.names import SCHEDULE_TOPIC, dlq_topic, retry_topic
from cometmq.message.pop_info import pop_retry_topic
from cometmq.message.properties import REAL_TOPIC, UNIQ_KEY
from cometmq.remoting.admin_bodies import Connection, ConsumerConnection, ConsumerRunningInfo
from cometmq.remoting.bodies import MessageQueue, SubscriptionData, SubscriptionGroupConfig
from cometmq.remoting.codes import ResponseCode

ASKED_MEMBERS: Final = 64
"""Maximum number of members that are asked for their state."""


@dataclass(frozen=True)
class Retries:
    """The copies of a message that its group failed to consume."""

    parked: tuple[MessageExt, ...]
    """Copies that were stored with a delay, oldest first."""
    delivered: tuple[MessageExt, ...]
    """Copies in the group's retry topics, oldest first."""
    dead: tuple[MessageExt, ...]
    committed: int | None
    """The group's offset in the queue of the last delivered copy."""


@dataclass(frozen=True)
class GroupFacts:
    """A group's configuration, members, position in the message's queue, and earlier attempts."""

    config: SubscriptionGroupConfig | Unavailable | None
    connection: ConsumerConnection | Unavailable
    infos: dict[str, ConsumerRunningInfo | Unavailable]
    """The state of each member that was asked, by client id."""
    committed: int | Unavailable | None
    """The offset that the group reads next in the message's queue, or None if it never committed one."""
    progress: QueueProgress | Unavailable | None
    retries: Retries | Unavailable
    consumptions: tuple[Consumption, ...] | Unavailable
    """The group's traced attempts."""

    @property
    def members(self) -> list[str]:
        """Return the client ids of the members."""
        if isinstance(self.connection, Unavailable):
            return []
        return sorted(member.client_id for member in self.connection.connection_set)

    @property
    def member_address(self) -> str:
        """Return the IP address of a member, or the loopback address if there is none."""
        if isinstance(self.connection, Unavailable) or not self.connection.connection_set:
            return "127.0.0.1"
        host = self.connection.connection_set[0].client_addr.removeprefix("/").rpartition(":")[0]
        return host if stored_ip(host) is not None else "127.0.0.1"

    @property
    def model(self) -> str:
        """Return ``CLUSTERING`` or ``BROADCASTING``, or an empty text if it is not known."""
        return "" if isinstance(self.connection, Unavailable) else (self.connection.message_model or "")

    def subscriptions(self, topic: str) -> dict[str, SubscriptionData | None]:
        """Return each member's subscription to a topic, by client id; None if the member does not subscribe to it.

        Members that do not answer (those of gRPC clients) are left out, unless the group has no other members.
        """
        found = {
            name: next((one for one in info.subscription_set if one.topic == topic), None)
            for name, info in self.infos.items()
            if isinstance(info, ConsumerRunningInfo)
        }
        if not found and self.members and isinstance(self.connection, ConsumerConnection):
            return dict.fromkeys(self.members, self.connection.subscription_table.get(topic))
        return found


async def facts_of(admin: Admin, question: Question, message: MessageExt) -> GroupFacts:
    """Ask the servers about a group; a question that they refuse is part of the facts."""
    group, topic = question.group, question.topic
    queue = MessageQueue(topic, message.broker_name, message.queue_id)
    config, connections, committed, progress, retries, consumptions = await asyncio.gather(
        tried(_config(admin, group)),
        tried(_connections(admin, group)),
        tried(admin.offsets.committed(group, queue)),
        tried(_progress(admin, group, queue)),
        tried(_retries(admin, question, message)),
        tried(_consumptions(admin, group, message)),
    )
    infos: dict[str, ConsumerRunningInfo | Unavailable] = {}
    if not isinstance(connections, Unavailable):
        places = {member.client_id: at for at, found in connections.items() for member in found.connection_set}
        asked = dict(sorted(places.items())[:ASKED_MEMBERS])
        infos = await gathered(
            {name: tried(admin.consumer_running_info(group, name, at)) for name, at in asked.items()}
        )
    connection = connections if isinstance(connections, Unavailable) else _merged(connections)
    return GroupFacts(config, connection, infos, committed, progress, retries, consumptions)


async def _config(admin: Admin, group: str) -> SubscriptionGroupConfig | None:
    return (await admin.groups()).get(group)


async def _connections(admin: Admin, group: str) -> dict[str, ConsumerConnection]:
    masters = await admin.masters()
    return await gathered({address: connection_of(admin, group, address) for address in masters.values()})


def _merged(connections: dict[str, ConsumerConnection]) -> ConsumerConnection:
    merged = ConsumerConnection()
    members: dict[str, Connection] = {}
    for found in connections.values():
        members |= {member.client_id: member for member in found.connection_set}
        if found.connection_set:
            merged.subscription_table = {**merged.subscription_table, **found.subscription_table}
            merged.consume_type, merged.message_model = found.consume_type, found.message_model
            merged.consume_from_where = found.consume_from_where
    merged.connection_set = list(members.values())
    return merged


async def _progress(admin: Admin, group: str, queue: MessageQueue) -> QueueProgress | None:
    try:
        found = await admin.consume_progress(group, queue.topic)
    except BrokerError as error:
        if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST):
            return None  # the group has never consumed the topic
        raise
    return next((one for one in found.queues if one.queue == queue), None)


async def _retries(admin: Admin, question: Question, message: MessageExt) -> Retries:
    key = message.properties.get(UNIQ_KEY)
    if key is None:
        return Retries((), (), (), None)
    group, topic = question.group, question.topic
    own = (retry_topic(group), pop_retry_topic(topic, group), pop_retry_topic(topic, group, v2=True))
    copies = [found for name in own for found in await by_unique_key(admin, name, key)]
    delivered = sorted(copies, key=lambda copy: copy.store_timestamp)
    parked = [
        found for found in await by_unique_key(admin, SCHEDULE_TOPIC, key) if found.properties.get(REAL_TOPIC) in own
    ]
    dead = await by_unique_key(admin, dlq_topic(group), key)
    committed = None
    if delivered:
        last = delivered[-1]
        queue = MessageQueue(last.stored_topic, last.broker_name, last.queue_id)
        committed = await admin.offsets.committed(group, queue)
    return Retries(tuple(parked), tuple(delivered), tuple(dead), committed)


async def _consumptions(admin: Admin, group: str, message: MessageExt) -> tuple[Consumption, ...]:
    try:
        way = await way_of(admin, message.msg_id)
    except RouteNotFoundError:
        return ()
    return tuple(call for call in way.consumptions if call.group == group)
