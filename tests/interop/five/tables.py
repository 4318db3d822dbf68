"""Topics with a message type, and consumer groups, made by requests that Apache's brokers of 5.x know, too.

And the wait until an endpoint has them. Nobody asks it before the nameserver has a route: Apache's endpoint keeps for a
while that a topic has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import grpc
from tests.helpers.waiting import answered, wait_for
from tests.interop import probe
from tests.proxy.client import Client

from cometmq.proxy.protocol import v2
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode


class Endpoint(NamedTuple):
    """The addresses of an endpoint, of the broker behind it, and of their nameserver."""

    address: str
    broker: str
    namesrv: str


async def wait_until_ready(endpoint: Endpoint, topics: Iterable[str]) -> None:
    """Wait until the endpoint has routes of topics that were just made."""
    async with grpc.aio.insecure_channel(endpoint.address) as channel:
        client = Client(channel)
        for topic in topics:
            wait_for(partial(probe.topic_routed, endpoint.namesrv, topic), f"a route of {topic}")
            request = v2.QueryRouteRequest(topic=v2.Resource(name=topic))

            async def has_route(request: v2.QueryRouteRequest = request) -> bool:
                return bool((await client.ask("QueryRoute", request)).status.code == v2.Code.OK)

            await answered(has_route)


async def send_a_probe(endpoint: Endpoint) -> None:
    """Wait until a message can be sent through an endpoint that was just started."""
    async with RemotingClient() as client:
        await make_topic(client, endpoint.broker, "Probe", "NORMAL", queues=1)
    await wait_until_ready(endpoint, ["Probe"])
    async with grpc.aio.insecure_channel(endpoint.address) as channel:
        producer = Client(channel)

        async def is_sent() -> bool:
            return bool((await producer.send("Probe", b"probe")).status.code == v2.Code.OK)

        await answered(is_sent)


async def make_topic(client: RemotingClient, broker: str, name: str, kind: str, queues: int) -> None:
    """Make a topic for messages of one kind: ``NORMAL``, ``FIFO``, …"""
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": f"+message.type={kind}",
    }
    answer = await client.invoke(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, None, ext=fields, timeout_s=20)
    assert answer.code == 0, answer.remark


async def make_group(client: RemotingClient, broker: str, name: str, **settings: object) -> None:
    """Make a consumer group with settings by their names on the wire."""
    body = json.dumps({"groupName": name, **settings}).encode()
    answer = await client.invoke(broker, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body, timeout_s=20)
    assert answer.code == 0, answer.remark
