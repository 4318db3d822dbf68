"""The checks for requests about lite topics, with Apache's texts."""

from __future__ import annotations

from cometmq.broker.limits import MAX_POP_INVISIBLE_MS
from cometmq.broker.lite.indexes import LiteIndexes
from cometmq.broker.tables.group_attributes import LiteGroup
from cometmq.broker.tables.groups import SubscriptionGroupManager
from cometmq.broker.tables.topics import TopicConfigManager
from cometmq.broker.turn.targets import TOPIC_HELP, RefusedError
from cometmq.message.names import PERM_READ
from cometmq.remoting.codes import ResponseCode


class LiteChecks:
    """Checks the parent topics and groups of requests."""

    def __init__(self, topics: TopicConfigManager, groups: SubscriptionGroupManager, indexes: LiteIndexes) -> None:
        self._topics = topics
        self._groups = groups
        self._indexes = indexes

    def pair(self, topic: str, group: str) -> LiteGroup:
        """Return the settings of a group that reads a parent topic.

        :raises RefusedError: one of them does not exist or does not allow reading, or they do not belong together.
        """
        config = self._topics.get(topic)
        if config is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic [{topic}] not exist, apply first please! {TOPIC_HELP}"
            )
        if not config.perm & PERM_READ:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic [{topic}] peeking message is forbidden")
        if not self._indexes.is_parent(topic):
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"the topic [{topic}] message type not match")
        known = self._groups.find(group)
        if known is None:
            raise RefusedError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group}] not exist, {TOPIC_HELP.strip()}",
            )
        if not known.consume_enable:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
        settings = LiteGroup.of(known)
        if settings.bind_topic != topic:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"subscription bind topic not match, {group}")
        return settings

    def settings(self, group: str) -> LiteGroup:
        """Return the settings of a group, which may not exist."""
        return LiteGroup.of(self._groups.get(group))

    def parent(self, topic: str) -> None:
        """Check the parent topic in a question of a tool.

        :raises RefusedError: it does not exist, or has no lite topics.
        """
        if self._topics.get(topic) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"Topic [{topic}] not exist.")
        if not self._indexes.is_parent(topic):
            raise RefusedError(ResponseCode.INVALID_PARAMETER, f"Topic [{topic}] type not match.")

    def group(self, group: str) -> LiteGroup:
        """Return the settings of the group in a question of a tool.

        :raises RefusedError: it does not exist.
        """
        known = self._groups.get(group)
        if known is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group [{group}] not exist.")
        return LiteGroup.of(known)


def check_invisible(invisible_ms: int) -> None:
    """Check the invisible time of a request.

    :raises RefusedError: it is negative or too long.
    """
    if not 0 <= invisible_ms <= MAX_POP_INVISIBLE_MS:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime[{invisible_ms}] is illegal, use 0 to {MAX_POP_INVISIBLE_MS} milliseconds",
        )
