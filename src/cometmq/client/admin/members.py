"""A consumer group's members, their subscriptions, and conflicts between these subscriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cometmq.client.admin import Admin
from cometmq.client.admin.several import gathered
from cometmq.client.errors import BrokerError, RemotingError
from cometmq.errors import CometMQError
from cometmq.message.names import retry_topic
from cometmq.remoting.admin_bodies import Connection, ConsumerConnection
from cometmq.remoting.bodies import SubscriptionData
from cometmq.remoting.codes import ResponseCode


@dataclass(frozen=True)
class Member:
    """A member of a group, as seen by brokers."""

    connection: Connection
    subscriptions: Mapping[str, str] | None
    """Subscription expressions by topic, or None if the member does not report its subscriptions."""


async def check_group_exists(admin: Admin, group: str) -> None:
    """Check that a group exists on at least one broker.

    :raises CometMQError: no broker has the group.
    """
    if group not in await admin.groups():
        raise CometMQError(f"group {group} does not exist", next_step="run cometmq group list to see all groups")


async def connection_of(admin: Admin, group: str, address: str | None = None) -> ConsumerConnection:
    """Return a group's members on one broker, or on the first broker with members; empty if there are none."""
    try:
        return await admin.consumer_connection(group, address)
    except BrokerError as error:
        if error.code in (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR):
            return ConsumerConnection()
        raise
    except RemotingError:
        if admin.unanswered is None:
            raise
        return ConsumerConnection()


async def members_of(admin: Admin, group: str) -> list[str]:
    """Return the sorted client ids of a group's members on all brokers."""
    masters = await admin.masters()
    found = await gathered({name: connection_of(admin, group, address) for name, address in masters.items()})
    return sorted({member.client_id for one in found.values() for member in one.connection_set})


async def subscriptions_of(admin: Admin, group: str) -> list[Member]:
    """Return a group's members with their subscriptions, which a broker requests from each member."""
    masters = await admin.masters()
    found = await gathered({name: connection_of(admin, group, address) for name, address in masters.items()})
    places = {member.client_id: (member, masters[name]) for name, one in found.items() for member in one.connection_set}
    lists = await gathered(
        {name: _subscriptions_of(admin, group, name, address) for name, (_, address) in sorted(places.items())}
    )
    return [Member(places[name][0], subscriptions) for name, subscriptions in lists.items()]


async def _subscriptions_of(admin: Admin, group: str, client_id: str, address: str) -> dict[str, str] | None:
    try:
        info = await admin.consumer_running_info(group, client_id, address)
    except (BrokerError, RemotingError):
        return None
    return texts(info.subscription_set, group)


def texts(subscriptions: Iterable[SubscriptionData], group: str) -> dict[str, str]:
    """Return the subscription expressions by topic, excluding the group's retry topic."""
    return {
        found.topic: found.sub_string or "*"
        for found in sorted(subscriptions, key=lambda found: found.topic)
        if found.topic != retry_topic(group)
    }


def contradictions(members: Iterable[Member]) -> list[str]:
    """Return a sentence for each topic to which members subscribe differently."""
    known = [member for member in members if member.subscriptions is not None]
    topics = sorted({topic for member in known for topic in member.subscriptions or ()})
    sentences = []
    for topic in topics:
        said: dict[str, list[str]] = {}
        for member in known:
            expression = (member.subscriptions or {}).get(topic, "not at all")
            said.setdefault(expression, []).append(member.connection.client_id)
        if len(said) > 1:
            parts = "; ".join(f"{expression}: {', '.join(names)}" for expression, names in said.items())
            sentences.append(f"topic {topic}: members subscribe to it differently ({parts})")
    return sentences
