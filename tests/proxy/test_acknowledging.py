"""Acknowledgements of many messages in one request, and who is to see each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.helpers.request_hooks import add_hooks
from tests.proxy.client import Client, receive

from cometmq.broker.turn.targets import RefusedError
from cometmq.proxy.protocol import v2
from cometmq.proxy.protocol.v2 import Code
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.processors import RpcHook
from cometmq.testing import Cluster

G, T = v2.Resource(name="G"), v2.Resource(name="T")


async def handles(client: Client, count: int) -> list[str]:
    """The receipt handles of so many messages."""
    await client.subscribe("G", "T")
    for number in range(count):
        await client.send("T", b"%d" % number)
    found: list[str] = []
    while len(found) < count:
        answers = await client.receive(receive("T", "G", "broker-0"))
        found += [one.message.system_properties.receipt_handle for one in answers if one.HasField("message")]
    return found


async def ack(client: Client, *texts: str) -> v2.AckMessageResponse:
    entries = [v2.AckMessageEntry(message_id=f"id{place}", receipt_handle=text) for place, text in enumerate(texts)]
    answer = await client.ask("AckMessage", v2.AckMessageRequest(group=G, topic=T, entries=entries))
    assert isinstance(answer, v2.AckMessageResponse)
    assert [(entry.message_id, entry.receipt_handle) for entry in answer.entries] == [
        (entry.message_id, entry.receipt_handle) for entry in entries
    ]
    return answer


def codes(answer: v2.AckMessageResponse) -> Sequence[int]:
    return [entry.status.code for entry in answer.entries]


async def test_each_message_of_a_request_has_its_own_outcome(cluster: Cluster, client: Client) -> None:
    first, second, third, stale = await handles(client, 4)
    assert codes(await ack(client, stale)) == [Code.OK]
    parts = third.split(" ")
    expired = " ".join([parts[0], "1000", *parts[2:]])
    foreign = " ".join([*parts[:5], "broker-9", *parts[6:]])
    beyond = " ".join([*parts[:7], "99", parts[8]])
    answer = await ack(client, first, "x", second, stale, expired, foreign, beyond, first)
    wrong, refused = Code.INVALID_RECEIPT_HANDLE, Code.INTERNAL_SERVER_ERROR
    assert codes(answer) == [Code.OK, wrong, Code.OK, Code.OK, wrong, refused, refused, Code.OK]
    assert (answer.status.code, answer.status.message) == (Code.MULTIPLE_RESULTS, "Multiple result")
    assert cluster.broker(0).pops.state.in_flight("T", "G") == 1
    last = await ack(client, third)
    assert (last.status.code, last.status.message, last.entries[0].status.message) == (Code.OK, "OK", "OK")
    assert cluster.broker(0).pops.state.in_flight("T", "G") == 0


async def test_a_request_with_one_kind_of_error_has_its_code(client: Client) -> None:
    answer = await ack(client, "x", "y")
    assert (answer.status.code, answer.status.message) == (Code.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE")


async def test_messages_of_one_pop_from_a_queue_are_one_entry_of_the_pop_log(cluster: Cluster, client: Client) -> None:
    log = cluster.broker(0).pops.log
    found = await handles(client, 12)
    before = log.put_entries
    assert set(codes(await ack(client, *found))) == {Code.OK}
    pops = {(pop_time, queue_id) for _, pop_time, _, _, _, _, queue_id, *_ in (text.split(" ") for text in found)}
    assert log.put_entries - before == len(pops) < len(found)


async def test_hooks_see_each_acknowledgement(cluster: Cluster, client: Client) -> None:
    found = await handles(client, 3)
    seen: list[int] = []
    add_hooks(cluster.broker(0).server, RpcHook(before=lambda _peer, request, _body: seen.append(request.code)))
    assert codes(await ack(client, *found)) == [Code.OK] * 3
    assert seen.count(RequestCode.ACK_MESSAGE) == 3


async def test_messages_stay_invisible_while_nothing_can_be_stored(cluster: Cluster, client: Client) -> None:
    broker = cluster.broker(0)
    found = await handles(client, 2)
    broker.turn.forbid(RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "not now"))
    answer = await ack(client, *found)
    assert codes(answer) == [Code.INTERNAL_SERVER_ERROR] * 2
    assert "not now" in answer.entries[0].status.message
    assert broker.pops.state.in_flight("T", "G") == 2
    broker.turn.forbid(None)
    assert codes(await ack(client, *found)) == [Code.OK] * 2


async def test_a_thousand_stale_handles_leave_time_for_others(cluster: Cluster, client: Client) -> None:
    await client.send("T", b"")
    server: Any = cluster.broker(0).server
    now_ms = cluster.broker(0).clock.now_ms()
    steps: list[int] = []  # requests in each step of the loop
    serve = server.serve

    def counted(*arguments: Any) -> None:
        steps[-1] += 1
        serve(*arguments)

    server.serve = counted
    answering = asyncio.ensure_future(
        ack(client, *(f"0 {now_ms} 60000 0 0 broker-0 0 {offset} 0" for offset in range(1_000)))
    )
    while not answering.done():
        steps.append(0)
        await asyncio.sleep(0)
    assert len(codes(await answering)) == 1_000
    assert sum(steps) >= 1_000
    assert max(steps) <= 40


async def test_a_handle_twice_and_those_of_others_end_only_their_own_message(cluster: Cluster, client: Client) -> None:
    first, second = await handles(client, 2)
    entry = v2.AckMessageEntry(message_id="id", receipt_handle=first)
    request = v2.AckMessageRequest(group=v2.Resource(name="Other"), topic=T, entries=[entry])
    await client.ask("AckMessage", request)
    assert cluster.broker(0).pops.state.in_flight("T", "G") == 2
    assert codes(await ack(client, first, first)) == [Code.OK] * 2
    assert cluster.broker(0).pops.state.in_flight("T", "G") == 1
    assert codes(await ack(client, second)) == [Code.OK]
    assert cluster.broker(0).pops.state.in_flight("T", "G") == 0
