"""Topics and groups as the brokers' configurations say."""

from __future__ import annotations

from typing import Final

from cometmq.proxy.backend.backend import GroupInfo
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.bodies import Body, TopicConfig

MESSAGE_TYPE: Final = "message.type"
NORMAL: Final = "NORMAL"
MIXED: Final = "MIXED"
"""Every type."""


class RetryPolicyBody(Body):
    """``GroupRetryPolicy``."""

    type: str = "CUSTOMIZED"
    exponential_retry_policy: dict[str, int] | None = None
    customized_retry_policy: dict[str, list[int]] | None = None


class GroupBody(Body):
    """The fields of a ``SubscriptionGroupConfig`` that the endpoint reads."""

    retry_max_times: int = 16
    consume_message_orderly: bool = False
    group_retry_policy: RetryPolicyBody | None = None


def group_info(body: GroupBody) -> GroupInfo:
    """The group of a configuration."""
    policy = body.group_retry_policy
    pauses: tuple[int, ...] = ()
    if policy is not None and policy.customized_retry_policy:
        pauses = tuple(policy.customized_retry_policy.get("next", ()))
    return GroupInfo(body.retry_max_times, body.consume_message_orderly, pauses)


def message_type_of(config: TopicConfig) -> str:
    """The type of a topic's messages; some tools store the attribute with the sign of its command."""
    attributes = config.attributes or {}
    return attributes.get(MESSAGE_TYPE) or attributes.get(f"+{MESSAGE_TYPE}") or NORMAL


def no_route(topic: str) -> ProxyError:
    """The refusal of a topic that does not exist."""
    return ProxyError(
        Code.TOPIC_NOT_FOUND, f"CODE: 17  DESC: No topic route info in name server for the topic: {topic}"
    )
