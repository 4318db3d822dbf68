"""Requests and replies under any mix of quick, late, missing and repeated replies, and of brokers that die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.client import ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer
from cometmq.client.errors import BrokerError, RequestTimeoutError
from cometmq.testing import Cluster, VirtualClock

TOPIC = "Questions"
TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Plan:
    """The fate of one request: the time of its replier, and the number of its replies."""

    after_s: float
    times: int

    @property
    def is_answered(self) -> bool:
        """Tell whether a reply comes in time."""
        return self.times > 0 and self.after_s < TIMEOUT_S


PLANS = st.builds(Plan, after_s=st.sampled_from([0.0, 1.0, 7.0, 13.0, 40.0]), times=st.integers(0, 2))


async def play(plans: list[Plan], kills_broker: bool) -> None:
    clock = VirtualClock()
    async with Cluster(brokers=2, clock=clock) as cluster:
        await cluster.create_topic(TOPIC)
        failures: list[BrokerError] = []
        replier = Producer("replier", instance=cluster.client_instance())

        async def listener(messages: Sequence[MessageExt]) -> None:
            (request,) = messages
            plan = plans[int(request.body)]
            await clock.sleep(plan.after_s)
            for _ in range(plan.times):
                try:
                    await replier.reply(request, b"reply to " + request.body)
                except BrokerError as error:
                    failures.append(error)

        config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer("service", listener, config=config, instance=cluster.client_instance())
        await consumer.subscribe(TOPIC)
        asker = Producer("asker", instance=cluster.client_instance())
        async with replier, consumer, asker:
            asking = [
                asker.request(Message(TOPIC, b"%d" % number), timeout_s=TIMEOUT_S) for number in range(len(plans))
            ]
            outcomes = await clock.run_until(asyncio.gather(*asking, return_exceptions=True), 60)
            for number, (plan, outcome) in enumerate(zip(plans, outcomes, strict=True)):
                if plan.is_answered:
                    assert isinstance(outcome, MessageExt)
                    assert outcome.body == b"reply to %d" % number
                else:
                    assert isinstance(outcome, RequestTimeoutError)
            if kills_broker:
                await cluster.kill_broker(0)
                await cluster.start_broker(0)
            await clock.run_for(60)
            if not kills_broker:
                assert not failures, "who asked is there, and takes no notice of replies that come late or twice"
            plans.append(Plan(0.0, 1))
            last = asker.request(Message(TOPIC, b"%d" % (len(plans) - 1)), timeout_s=TIMEOUT_S)
            assert (await clock.run_until(last, 60)).body == b"reply to %d" % (len(plans) - 1)


@settings(max_examples=15, deadline=None)
@given(st.lists(PLANS, min_size=1, max_size=12), st.booleans())
def test_each_request_gets_its_own_reply_or_a_timeout(plans: list[Plan], kills_broker: bool) -> None:
    asyncio.run(play(list(plans), kills_broker))
