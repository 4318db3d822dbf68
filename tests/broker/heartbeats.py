"""Heartbeats of clients, sent over a wire."""

from __future__ import annotations

from tests.broker.wire import Wire

from cometmq.remoting.bodies import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode


def heartbeat(client: str, *topics: str, group: str = "g", version: int = 1, producer: str | None = None) -> bytes:
    subscriptions = [SubscriptionData(topic=topic, sub_version=version) for topic in topics]
    return encode_body(
        HeartbeatData(
            client_id=client,
            consumer_data_set=[ConsumerData(group_name=group, subscription_data_set=subscriptions)] if topics else [],
            producer_data_set=[ProducerData(group_name=producer)] if producer else [],
        )
    )


async def beat(wire: Wire, body: bytes) -> None:
    answer = await wire.call(RequestCode.HEART_BEAT, body=body)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)
    assert answer.version >= 232, "clients with SQL subscriptions look at it"
