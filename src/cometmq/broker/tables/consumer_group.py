"""ConsumerGroup: the live members of a consumer group and their subscriptions (``ConsumerGroupInfo``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from cometmq.broker.limits import SUBSCRIPTION_OVERHEAD_CHARS
from cometmq.remoting.bodies import ConsumerData, SubscriptionData
from cometmq.remoting.server_connection import ServerConnection

BROADCASTING: Final = "BROADCASTING"


class ClientChannel(msgspec.Struct, eq=False):
    """A client on a connection, as described by its last heartbeat (``ClientChannelInfo``)."""

    connection: ServerConnection
    client_id: str
    language: str
    version: int
    last_update: float
    """Time of the last heartbeat in monotonic seconds."""
    last_update_ms: int
    """Time of the last heartbeat in milliseconds since 1970, for tools."""


class ConsumerGroup(msgspec.Struct, eq=False):
    """The live members of one consumer group and their subscriptions (``ConsumerGroupInfo``)."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData]
    channels: dict[ServerConnection, ClientChannel]
    subscription_chars: int = 0
    """Size of the subscriptions, as calculated by :func:`subscription_chars`."""
    contradiction: str = ""
    """The last logged difference in subscriptions, so that it is not logged again at each heartbeat."""

    @property
    def client_ids(self) -> list[str]:
        """Return the client IDs of all channels; a client with two connections appears twice."""
        return [channel.client_id for channel in self.channels.values()]

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Apply the subscriptions in a heartbeat; return whether the set of topics changed.

        A newer version of a subscription replaces the old one; this does not count as a change.
        """
        changed = False
        named: set[str] = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            old = self.subscriptions.get(subscription.topic)
            if old is None:
                changed = True
            if old is None or subscription.sub_version > old.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in [topic for topic in self.subscriptions if topic not in named]:
            del self.subscriptions[topic]
            changed = True
        return changed

    def selects_as(self, subscriptions: Collection[SubscriptionData]) -> bool:
        """Return whether the group has exactly these topics with the same expressions."""
        return self._has_all(
            subscriptions,
            lambda old, one: old.sub_string == one.sub_string and old.expression_type == one.expression_type,
        )

    def has_applied(self, subscriptions: Collection[SubscriptionData]) -> bool:
        """Return whether :meth:`subscribe` would change nothing: no other member has sent other topics since."""
        return self._has_all(subscriptions, lambda old, one: old.sub_version >= one.sub_version)

    def _has_all(
        self,
        subscriptions: Collection[SubscriptionData],
        suits: Callable[[SubscriptionData, SubscriptionData], bool],
    ) -> bool:
        """Return whether the group has exactly these topics, and each of its subscriptions suits the new one."""
        known = self.subscriptions
        return len(known) == _topics(subscriptions) and all(
            (old := known.get(one.topic)) is not None and suits(old, one) for one in subscriptions
        )

    def repeats(self, data: ConsumerData) -> bool:
        """Return whether a heartbeat contains only what other members have sent, so that it needs no checks and changes
        nothing. The version of a subscription may be older: Java's clients set it to their time of start.
        """
        known, subscriptions = self.subscriptions, data.subscription_data_set
        if (
            len(known) != len(subscriptions)
            or self.consume_type != data.consume_type
            or self.message_model != data.message_model
            or self.consume_from_where != data.consume_from_where
        ):
            return False
        for one in subscriptions:
            old = known.get(one.topic)
            if (
                old is None
                or old.sub_version < one.sub_version
                or old.sub_string != one.sub_string
                or old.expression_type != one.expression_type
                or old.tags_set != one.tags_set
                or old.code_set != one.code_set
            ):
                return False
        return len(known) == 1 or _topics(subscriptions) == len(known)


def _topics(subscriptions: Collection[SubscriptionData]) -> int:
    """Return the number of topics, which a faulty client may name several times."""
    return len({subscription.topic for subscription in subscriptions})


def contradiction_of(group: ConsumerGroup, data: ConsumerData) -> str:
    """Describe how a heartbeat's subscriptions differ from those of other members, or return an empty string.

    The text does not depend on the order of the members.
    """
    if group.selects_as(data.subscription_data_set):
        return ""
    wanted = {found.topic: f"{found.expression_type} {found.sub_string}" for found in data.subscription_data_set}
    known = {topic: f"{found.expression_type} {found.sub_string}" for topic, found in group.subscriptions.items()}
    if wanted == known:
        return ""
    topic = min(topic for topic in wanted.keys() | known.keys() if wanted.get(topic) != known.get(topic))
    first, second = sorted((wanted.get(topic, "no subscription"), known.get(topic, "no subscription")))
    return f"topic {topic}: one member has {first}, another has {second}"


def subscription_chars(subscription: SubscriptionData) -> int:
    """Return a subscription's size for the limit, including weights for the subscription, its tags and its tag
    codes.
    """
    codes = subscription.code_set
    return (
        SUBSCRIPTION_OVERHEAD_CHARS
        + len(subscription.topic)
        + len(subscription.expression_type)
        + selection_chars(subscription)
        + 8 * (len(subscription.tags_set) + len(codes))
    )


def selection_chars(subscription: SubscriptionData) -> int:
    """Return the number of characters in a subscription's expression, tags and tag codes."""
    codes = subscription.code_set
    return (
        len(subscription.sub_string)
        + sum(map(len, subscription.tags_set))
        + sum(len(code) if isinstance(code, str) else code.bit_length() // 3 for code in codes)
    )
