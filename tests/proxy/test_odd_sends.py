"""Life times and priorities that make no sense, over gRPC."""

from __future__ import annotations

import pytest
from tests.helpers.contents import stored
from tests.proxy.client import Client, message

from cometmq.client import Admin
from cometmq.limits import MAX_TTL_MS
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.testing import Cluster

HUNDRED_YEARS_MS = 100 * 366 * 86_400_000


async def send(client: Client, ttl: str) -> v2.SendMessageResponse:
    sent = message("T", b"x", {"COMETMQ_TTL_MS": ttl}, message_type=v2.MessageType.NORMAL)
    answer = await client.ask("SendMessage", v2.SendMessageRequest(messages=[sent]))
    assert isinstance(answer, v2.SendMessageResponse)
    return answer


@pytest.mark.parametrize("ttl", ["0", "-1", str(MAX_TTL_MS + 1), str(HUNDRED_YEARS_MS), "soon"])
async def test_a_life_time_that_makes_no_sense_is_refused(client: Client, cluster: Cluster, ttl: str) -> None:
    answer = await send(client, ttl)
    assert answer.status.code == Code.INTERNAL_SERVER_ERROR, "that of Apache's endpoint for code 13 of a broker"
    assert "COMETMQ_TTL_MS must be a whole number of milliseconds from 1 to 315360000000" in answer.status.message
    assert stored(cluster.broker(0), "T") == []


async def test_the_shortest_and_the_longest_life_are_accepted(client: Client) -> None:
    for ttl in ("1", str(MAX_TTL_MS)):
        assert (await send(client, ttl)).status.code == Code.OK


async def test_a_priority_beyond_the_levels_is_the_highest_and_a_negative_one_is_refused(
    client: Client, cluster: Cluster
) -> None:
    async with Admin(instance=cluster.client_instance()) as admin:
        await admin.create_topic("P", queues=3, message_type="PRIORITY")
    kind = v2.MessageType.PRIORITY
    assert (await client.send("P", b"x", priority=99, message_type=kind)).status.code == Code.OK
    assert [record.queue_id for record in stored(cluster.broker(0), "P", 2)] == [2]
    refused = await client.send("P", b"x", priority=-1, message_type=kind)
    assert (refused.status.code, "priority" in refused.status.message) == (Code.BAD_REQUEST, True)
