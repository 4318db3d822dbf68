"""A consumer's subscription to a topic (``FilterAPI``, ``SubscriptionData``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, TypeVar

from cometmq.client.errors import BrokerError, RemotingError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.java_values import TRIMMED
from cometmq.message.ids import tags_code
from cometmq.message.message import MessageExt
from cometmq.message.tags import split_tags
from cometmq.remoting.bodies import CheckClientRequestBody, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)

M = TypeVar("M", bound=MessageExt)

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"


def subscription(topic: str, expression: str, expression_type: str, version_ms: int) -> SubscriptionData:
    """Return a subscription to ``topic``: ``*``, tags (``TagA || TagB``), or an SQL92 expression on properties.

    :param version_ms: the version of the subscription; brokers keep the subscription with the highest version.
    :raises ValueError: a tag expression has no tags, an SQL92 expression is empty, the type is unknown, or a text
        contains an unpaired surrogate.
    """
    if expression_type not in (TAG, SQL92):
        raise ValueError(f"the expression type must be TAG or SQL92, not {expression_type!r}")
    text = expression.strip(TRIMMED)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"invalid character {text[error.start]!r} in an expression") from None
    if expression_type == SQL92 and not text:
        raise ValueError("an SQL92 subscription requires an expression")
    text = text or ALL
    data = SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version_ms)
    if expression_type == TAG and text != ALL:
        tags = split_tags(text)
        if not tags:
            raise ValueError(f"the expression {expression!r} contains no tags")
        data.tags_set = tags
        data.code_set = [tags_code(tag) for tag in tags]
    return data


def wanted(messages: list[M], data: SubscriptionData) -> list[M]:
    """Return the messages whose tags match the subscription; brokers compare only hashes."""
    if not data.tags_set:
        return messages
    tags = frozenset(data.tags_set)
    return [message for message in messages if message.tags in tags]


async def check_expressions(instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
    """Check SQL92 expressions on all masters of their topics; Java asks only one master.

    Brokers that do not answer and topics that have no route are skipped; the reader logs them.

    :raises BrokerError: a broker has no SQL92 filter, or the expression is malformed, as its remark says.
    """
    for data in subscriptions:
        if data.expression_type == TAG:
            continue
        try:
            route = await instance.routes.get_soon(data.topic)
        except (RouteNotFoundError, RemotingError):
            continue
        body = encode_body(CheckClientRequestBody(client_id=instance.client_id, group=group, subscription_data=data))
        masters = (instance.routes.brokers.master(broker.broker_name) for broker in route.data.broker_datas)
        doing = f"subscribing to {data.topic} by {data.expression_type}"
        await asyncio.gather(*(_check(instance, address, body, doing) for address in masters if address is not None))


async def _check(instance: ClientInstance, address: str, body: bytes, doing: str) -> None:
    try:
        await instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, None, body, doing=doing)
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR and "does not support" in (error.remark or ""):
            error.next_step = "set enablePropertyFilter=true on the broker, or subscribe by tags"
        raise
    except RemotingError as error:
        log.warning("%s: %s", doing, error)
