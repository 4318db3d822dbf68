"""A broker whose name has blanks, as Apache's brokers may have: pops, receipts and handles of delayed messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.proxy.client import Client, receive
from tests.proxy.test_consumer import ack, change
from tests.proxy.test_producer import make_topic

from cometmq.message.pop_info import ReceiptHandle, parse_handle
from cometmq.proxy.converter import timestamp
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import Cluster

NAME = "broker a 1"
"""What begins with a number could be another part of a handle."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    keys = {"brokerName": NAME, "recallMessageEnable": "true"}
    async with Cluster(grpc=True, broker_keys=keys) as running:
        await running.create_topic("T")
        yield running


async def received(client: Client) -> Any:
    """The next message, with its whole receipt."""
    while True:
        answers = await client.receive(receive("T", "G", NAME))
        for answer in answers:
            if answer.WhichOneof("content") == "message":
                return answer.message


async def test_a_message_comes_again_after_its_time_and_is_acknowledged(client: Client) -> None:
    await client.subscribe("G", "T")
    assert (await client.send("T", b"body")).status.code == Code.OK
    first = await received(client)
    assert (await change(client, first.system_properties.receipt_handle, 0)).status.code == Code.OK
    again = await received(client)
    assert (again.body, again.system_properties.delivery_attempt) == (b"body", 2)
    answer = await ack(client, again)
    assert (answer.status.code, [entry.status.code for entry in answer.entries]) == (Code.OK, [Code.OK])


async def test_a_delayed_message_is_recalled(cluster: Cluster, client: Client) -> None:
    await make_topic(cluster, "D", "DELAY")
    sent = await client.send("D", b"later", delivery_timestamp=timestamp(cluster.clock.now_ms() + 60_000))
    request = v2.RecallMessageRequest(topic=v2.Resource(name="D"), recall_handle=sent.entries[0].recall_handle)
    assert (await client.ask("RecallMessage", request)).status.code == Code.OK


@pytest.mark.parametrize("name", ["broker a", NAME, " 0 0 ", "broker-a"])
def test_a_handle_has_eight_parts_and_the_name(name: str) -> None:
    handle = ReceiptHandle(1, 2, 3, 4, "0", name, 5, 6)
    assert len(handle.encode().split(" ")) == 8
    assert parse_handle(handle.encode()) == handle
