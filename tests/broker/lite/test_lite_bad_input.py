"""Clients that ask for very much, or for nothing: each gets its answer, and nobody else waits for it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable
from typing import Any

from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.lite.subscribing import GROUP, PARENT, Reader, bodies, make_group, make_parent, send
from tests.broker.wire import Wire
from tests.helpers.pace import slowness_of_processor

from cometmq.broker.controller import Broker
from cometmq.remoting.bodies import encode_body
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.lite.bodies import LiteSubscriptionAction, LiteSubscriptionCtlRequestBody, LiteSubscriptionDTO
from cometmq.testing import VirtualClock

MOST_S = 0.05
TRIES = 3
MANY = 100_000


async def longest_round(work: Awaitable[Any]) -> float:
    """The most processor time that one round of the event loop takes until some work is done."""
    task = asyncio.ensure_future(work)
    longest = 0.0
    while not task.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    await task
    return longest


def sync_of(wire: Wire, names: list[str], version: int, action: LiteSubscriptionAction) -> RemotingCommand:
    change = LiteSubscriptionDTO(
        action=action, client_id="c1", group=GROUP, topic=PARENT, lite_topic_set=names, version=version
    )
    body = encode_body(LiteSubscriptionCtlRequestBody(subscription_set=[change]))
    return wire.command(RequestCode.LITE_SUBSCRIPTION_CTL, body=body)


async def test_a_client_that_syncs_a_hundred_thousand_lite_topics_holds_nobody_up(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await make_parent(wire)
    await make_group(wire, client_quota="-1")
    version, found = 0, list[float]()
    for attempt in range(TRIES):
        gc.collect()
        gc.freeze()
        longest = 0.0
        for action in (LiteSubscriptionAction.COMPLETE_ADD, LiteSubscriptionAction.PARTIAL_REMOVE):
            for half in range(2):
                version += 1
                first = half * MANY // 2
                names = [f"{attempt}-lite-{number:06d}" for number in range(first, first + MANY)]
                asked = sync_of(wire, names, version, action)
                longest = max(longest, await longest_round(wire.ask(asked)))
                if action is LiteSubscriptionAction.COMPLETE_ADD:
                    assert broker.lite.subscriptions.count == MANY
        assert broker.lite.subscriptions.count == 0
        found.append(longest)
        if longest < MOST_S or longest < MOST_S * slowness_of_processor():
            break
    else:
        raise AssertionError(f"rounds of the loop took {found} seconds")
    too_many = [f"x{number}" for number in range(MANY + 1)]
    beyond = await wire.ask(sync_of(wire, too_many, version + 1, LiteSubscriptionAction.COMPLETE_ADD))
    assert beyond.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert broker.lite.subscriptions.count == 0


async def test_a_client_that_never_subscribes_receives_nothing_and_leaves_nothing(
    broker: Broker, wire: Wire, clock: VirtualClock
) -> None:
    await make_parent(wire)
    await make_group(wire)
    await send(wire, "a", b"1")
    silent = Reader(wire, clock, "silent")
    for _ in range(3):
        assert bodies(await silent.pop()) == []
    assert broker.lite.subscriptions.clients == {}
    answer = await silent.control("PARTIAL_REMOVE", "a")
    assert answer.code == 0, "it may say so"
    assert broker.lite.subscriptions.clients == {}


async def test_an_older_subscription_that_comes_late_changes_nothing_after_a_restart_either(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    broker = await start_broker()
    wire = await connect_to(broker)
    await make_parent(wire)
    await make_group(wire)
    add = LiteSubscriptionAction.COMPLETE_ADD
    assert (await wire.ask(sync_of(wire, ["new"], 7, add))).code == 0
    assert (await wire.ask(sync_of(wire, ["old"], 6, add))).code == 0
    assert names_of(broker) == {"new"}
    await broker.stop()
    broker = await start_broker()
    wire = await connect_to(broker)
    assert (await wire.ask(sync_of(wire, ["old"], 6, add))).code == 0
    assert names_of(broker) == {"new"}
    assert (await wire.ask(sync_of(wire, ["newer"], 8, add))).code == 0
    assert names_of(broker) == {"newer"}


def names_of(broker: Broker) -> set[str]:
    (client,) = broker.lite.subscriptions.clients.values()
    return {client.index.name(number) for number in client.numbers}
