"""Asking brokers, before a consumer reads, whether they can serve its expressions (``checkClientInBroker``)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from cometmq.client.errors import BrokerError, RemotingError, RouteNotFoundError
from cometmq.client.instance import ClientInstance
from cometmq.client.subscription import TAG
from cometmq.remoting.bodies import CheckClientRequestBody, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode

log = logging.getLogger(__name__)


async def check_expressions(instance: ClientInstance, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
    """Ask the masters of each topic that is not subscribed to by tags; Java asks one of them.

    A broker that does not answer, and a topic without a route, are passed over: reading tells of them.

    :raises BrokerError: a broker has no SQL92 filter, or the expression is malformed; its words say which.
    """
    for data in subscriptions:
        if data.expression_type == TAG:
            continue
        try:
            route = await instance.routes.get_soon(data.topic)
        except (RouteNotFoundError, RemotingError):
            continue
        body = encode_body(CheckClientRequestBody(client_id=instance.client_id, group=group, subscription_data=data))
        masters = (instance.routes.master(broker.broker_name) for broker in route.data.broker_datas)
        doing = f"subscribing to {data.topic} by {data.expression_type}"
        await asyncio.gather(*(_check(instance, address, body, doing) for address in masters if address is not None))


async def _check(instance: ClientInstance, address: str, body: bytes, doing: str) -> None:
    try:
        await instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, None, body, doing=doing)
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR and "does not support" in (error.remark or ""):
            error.next_step = "set enablePropertyFilter=true at the broker, or subscribe by tags"
        raise
    except RemotingError as error:
        log.warning("%s: %s", doing, error)
