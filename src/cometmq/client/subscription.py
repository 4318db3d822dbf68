"""What a consumer wants of a topic (``FilterAPI``, ``SubscriptionData``)."""

from __future__ import annotations

from typing import Final

from cometmq.message.ids import tags_code
from cometmq.message.message import MessageExt
from cometmq.remoting.bodies import SubscriptionData

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


def subscription(topic: str, expression: str, expression_type: str, version_ms: int) -> SubscriptionData:
    """The subscription to ``topic``: ``*``, tags as ``TagA || TagB``, or (SQL92) an expression on properties.

    ``version_ms`` tells brokers which of two subscriptions is newer.

    :raises ValueError: there are no tags in a tag expression, there is no SQL92 expression, or the type is neither.
    """
    if expression_type not in (TAG, SQL92):
        raise ValueError(f"an expression is of type TAG or SQL92, not {expression_type!r}")
    text = expression.strip()
    if expression_type == SQL92 and not text:
        raise ValueError("a subscription by SQL92 needs an expression")
    text = text or ALL
    data = SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version_ms)
    if expression_type == TAG and text != ALL:
        tags = [tag for part in text.split("||") if (tag := part.strip())]
        if not tags:
            raise ValueError(f"no tag in the expression {expression!r}")
        data.tags_set = tags
        data.code_set = [tags_code(tag) for tag in tags]
    return data


def wanted(messages: list[MessageExt], data: SubscriptionData) -> list[MessageExt]:
    """The messages whose tag really is one of the subscription: brokers compare hashes only."""
    if not data.tags_set:
        return messages
    tags = frozenset(data.tags_set)
    return [message for message in messages if message.tags in tags]
