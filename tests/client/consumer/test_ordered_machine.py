"""Orderly consumption under any mix of joins, leaves, pauses, deaths, failures and restarts of the broker."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.client.consumer.ordered_group import Member, OrderedGroup

from cometmq.client import ConsumeFromWhere, PushConfig
from cometmq.client.consumer.listener import ConsumeResult, Retry, Suspend, Verdict

ACTIONS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.sampled_from(["join", "leave", "kill", "pause", "resume"]), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([1, 4, 15, 35, 70, 130])),
    st.tuples(st.just("fail"), st.integers(1, 4)),
    st.tuples(st.just("kill broker"), st.sampled_from([0, 5, 40])),
)
VERDICTS: list[Verdict | Exception] = [
    ConsumeResult.RECONSUME_LATER,
    Suspend(seconds=3.0),
    ValueError("no"),
    Retry(first=0),
]
MOST_MEMBERS = 4


async def play(actions: list[tuple[str, int]], batch: int) -> None:
    config = PushConfig(
        orderly=True,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        pull_batch_size=4,
        consume_batch_size=batch,
        consume_concurrency=2,
    )
    async with OrderedGroup(queues=3, config=config) as group:
        group.call_takes_s = 0.3
        await group.join()
        await group.send(6)
        for action, number in actions:
            await act(group, action, number)
            assert not group.wrong, group.wrong
        for member in group.members.values():
            member.clock.resume()
        if not group.members:
            await group.join()
        await group.all_done()


async def act(group: OrderedGroup, action: str, number: int) -> None:
    members: list[Member] = list(group.members.values())
    member = members[number % len(members)] if members else None
    if action == "send":
        await group.send(number)
    elif action == "wait":
        await group.pass_time(number)
    elif action == "fail":
        group.failures += [VERDICTS[number % len(VERDICTS)]] * number
    elif action == "kill broker":
        await group.until_done(group.cluster.kill_broker(0))
        await group.pass_time(number)
        await group.until_done(group.cluster.start_broker(0))
    elif action == "join" and len(members) < MOST_MEMBERS:
        await group.join()
    elif member is not None and action == "resume":
        member.clock.resume()
    elif member is not None and action == "pause":
        member.clock.pause()
    elif member is not None and action == "kill":
        await group.kill(member)
    elif member is not None and action == "leave":
        member.clock.resume()
        await group.leave(member)


@settings(max_examples=25, deadline=None)
@given(st.lists(ACTIONS, min_size=4, max_size=14), st.sampled_from([1, 3]))
def test_order_holds_and_nothing_is_lost(actions: list[tuple[str, int]], batch: int) -> None:
    asyncio.run(play(actions, batch))
