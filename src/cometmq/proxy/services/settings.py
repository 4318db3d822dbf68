"""Clients' settings, merged with the endpoint's settings (``GrpcClientSettingsManager``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cometmq.message.lite_names import MAX_LITE_TOPIC_BYTES
from cometmq.message.tags import split_tags
from cometmq.proxy.backend.backend import GroupInfo
from cometmq.proxy.config import EndpointConfig
from cometmq.proxy.converter import duration, full_name, group_of, topic_of
from cometmq.proxy.errors import ProxyError
from cometmq.proxy.limits import MAX_SETTINGS_TOPICS
from cometmq.proxy.lite import LITE_CLIENTS, LITE_MODEL
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import ClientType, Code, FilterType
from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData

_SECOND: Final = 1_000
_MINUTE: Final = 60_000
_LEVELS_MS: Final = (
    1 * _SECOND,
    5 * _SECOND,
    10 * _SECOND,
    30 * _SECOND,
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
"""The pauses before retries in milliseconds, as in the default delay levels (``CustomizedRetryPolicy``)."""


def check_settings(settings: v2.Settings) -> str:
    """Check a client's settings; return the consumer group, or an empty string for a producer.

    :raises ProxyError: the settings are invalid.
    """
    kind = settings.WhichOneof("pub_sub")
    if kind is None:
        raise ProxyError(Code.BAD_REQUEST, "there is no publishing or subscription data in settings")
    if kind == "publishing":
        topics = settings.publishing.topics
        if len(topics) > MAX_SETTINGS_TOPICS:
            raise ProxyError(Code.BAD_REQUEST, f"there are more than {MAX_SETTINGS_TOPICS} topics in settings")
        for topic in topics:
            topic_of(topic)
        return ""
    entries = settings.subscription.subscriptions
    if len(entries) > MAX_SETTINGS_TOPICS:
        raise ProxyError(Code.BAD_REQUEST, f"there are more than {MAX_SETTINGS_TOPICS} subscriptions in settings")
    for entry in entries:
        topic_of(entry.topic)
    return group_of(settings.subscription.group)


def merge_settings(settings: v2.Settings, group: GroupInfo | None, config: EndpointConfig) -> v2.Settings:
    """Return a client's settings with the values set by the endpoint.

    :param group: the client's group; ``None`` for a producer.
    """
    out = v2.Settings()
    out.CopyFrom(settings)
    if not out.HasField("metric"):
        out.metric.CopyFrom(v2.Metric())
    if group is None:
        out.publishing.max_body_size = config.body_max_bytes
        out.publishing.validate_message_type = config.validates_type
        out.backoff_policy.CopyFrom(
            v2.RetryPolicy(
                max_attempts=config.producer_attempts,
                exponential_backoff=v2.ExponentialBackoff(
                    initial=duration(config.producer_backoff_ms),
                    max=duration(config.producer_backoff_max_ms),
                    multiplier=config.producer_backoff_factor,
                ),
            )
        )
        return out
    subscription = out.subscription
    subscription.fifo = group.is_orderly
    subscription.receive_batch_size = config.long_polling_batch
    subscription.long_polling_timeout.CopyFrom(duration(config.long_polling_max_ms))
    subscription.lite_subscription_quota = group.lite_quota
    subscription.max_lite_topic_size = MAX_LITE_TOPIC_BYTES
    pauses = group.backoff_ms or _LEVELS_MS
    out.backoff_policy.CopyFrom(
        v2.RetryPolicy(
            max_attempts=group.retry_max_times + 1,
            customized_backoff=v2.CustomizedBackoff(next=[duration(pause) for pause in pauses]),
        )
    )
    return out


def heartbeat_of(client_id: str, settings: v2.Settings, version: int) -> HeartbeatData:
    """Return the heartbeat that the brokers get for a client.

    Each topic of a producer is also registered as a producer group, because brokers send transaction checks to groups.
    """
    if settings.WhichOneof("pub_sub") == "publishing":
        topics = dict.fromkeys(map(full_name, settings.publishing.topics))
        return HeartbeatData(
            client_id=client_id, producer_data_set=[ProducerData(group_name=topic) for topic in topics]
        )
    is_push = settings.client_type in (ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER)
    consumer = ConsumerData(
        group_name=full_name(settings.subscription.group),
        consume_type="CONSUME_PASSIVELY" if is_push else "CONSUME_ACTIVELY",
        subscription_data_set=list(_subscriptions(settings, version)),
    )
    if settings.client_type in LITE_CLIENTS:
        consumer.message_model = LITE_MODEL
    return HeartbeatData(client_id=client_id, consumer_data_set=[consumer])


def _subscriptions(settings: v2.Settings, version: int) -> Iterator[SubscriptionData]:
    for entry in settings.subscription.subscriptions:
        expression = entry.expression.expression or "*"
        is_sql = entry.expression.type == FilterType.SQL
        yield SubscriptionData(
            topic=full_name(entry.topic),
            sub_string=expression,
            expression_type="SQL92" if is_sql else "TAG",
            sub_version=version,
            tags_set=[] if is_sql or expression == "*" else split_tags(expression),
        )
