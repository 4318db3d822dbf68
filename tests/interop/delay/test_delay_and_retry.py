"""Delays and retries: real clients against either system, and a store with waiting messages in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.helpers.waiting import answered, wait_for
from tests.interop import probe
from tests.interop.clients import PATIENCE_S, Client, Series, seen
from tests.interop.conftest import _deploy
from tests.interop.systems import BOTH, Deployment, System

from cometmq.client import Admin, ConsumeFromWhere, Message, MessageExt, Producer, PushConfig, PushConsumer
from cometmq.client.consumer.listener import Retry
from cometmq.client.dead_letters import Ledger, Outcome, Selection, dead_letter_groups, read_dead_letters, resend

pytestmark = pytest.mark.interop

GetClient = Callable[[str], Client]
CLIENTS = ("java4", "java4-binary", "java5", "go", "node", "cpp")
SHORT_LEVELS = "1s 2s 1s 1s 2s 1h"
GROUP_FAILS = 2
LATE_MS = 30_000
"""A busy test machine is late, too; how exact the broker is, `benchmarks/delay.py` tells."""
NO_MAXIMUM = {"cpp"}
"""Clients that do not say how often a message may fail: the group's number counts."""
ONE_AT_A_TIME = {"cpp"}
"""Clients that show their listener no more of a batch once it failed on a message, and hand all of it back."""


@pytest.fixture(scope="module")
def delayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A system whose delays are short."""
    deployment = _deploy(System.COMETMQ, tmp_path_factory.mktemp("delayed"), messageDelayLevel=SHORT_LEVELS)
    yield deployment
    deployment.close()


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_sends_delayed_messages_and_receives_them_when_due(
    delayed: Deployment, clients: GetClient, java: Client, name: str
) -> None:
    client, topic = clients(name), f"Delayed-{name}"
    java.create_topic(delayed.address, delayed.broker.address, topic)
    series = Series(topic, 3, body=f"later-{name}")
    client.produce(delayed.address, series, delay_level=2)
    received = client.consume(delayed.address, topic, f"delayed-{name}", 3)
    assert seen(received) == sorted(series.expected())
    stored = java.read_topic(delayed.address, topic, 3)
    for event in stored:
        lateness = event["storeTimestamp"] - event["bornTimestamp"] - 2000
        assert 0 <= lateness < LATE_MS, "it is stored in its topic when it is due"
        assert event["properties"]["DELAY"] == "2"


@pytest.mark.parametrize("name", CLIENTS)
def test_every_client_gets_failed_messages_again_until_they_are_dead_letters(
    delayed: Deployment, clients: GetClient, java: Client, name: str
) -> None:
    client, topic, group = clients(name), f"Failing-{name}", f"failing-{name}"
    java.create_topic(delayed.address, delayed.broker.address, topic)
    java.mqadmin(delayed.address, "updateSubGroup", "-b", delayed.broker.address, "-g", group, "-r", str(GROUP_FAILS))
    poison = Series(topic, 1 if name in ONE_AT_A_TIME else 2, body="poison", keys="key{i}")
    java.produce(delayed.address, poison)
    maximum = {} if name in NO_MAXIMUM else {"max_reconsume_times": GROUP_FAILS}
    times = 1 + GROUP_FAILS
    consuming = client.start_consuming(delayed.address, topic, group, fail=99, timeout=120, **maximum)
    consuming.wait_until(
        lambda: len(consuming.named("message")) >= poison.count * times,
        2 * PATIENCE_S,
        f"{name} gets each message {times} times",
    )
    wait_for(
        lambda: probe.topic_routed(delayed.address, f"%DLQ%{group}"),
        "the nameserver knows the dead letters",
        PATIENCE_S,
    )
    dead = java.read_topic(delayed.address, f"%DLQ%{group}", poison.count)
    consuming.stop()
    assert seen(dead) == sorted(poison.expected())
    assert {event["properties"]["RETRY_TOPIC"] for event in dead} == {topic}
    attempts = sorted(event["reconsumeTimes"] for event in consuming.named("message"))
    assert attempts == sorted([*range(times)] * poison.count)
    topics = java.mqadmin(delayed.address, "topicList")
    assert f"%RETRY%{group}" in topics
    assert f"%DLQ%{group}" in topics


@pytest.mark.parametrize("polite", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("first", BOTH, ids=lambda system: f"{system.value}-first")
def test_a_store_with_waiting_messages_is_taken_over(
    deploy: Callable[..., Deployment], java: Client, first: System, polite: bool
) -> None:
    second = System.COMETMQ if first is System.APACHE else System.APACHE
    deployment = deploy(
        first,
        namesrv=System.APACHE,
        messageDelayLevel="1s 12s 1h",
        flushDelayOffsetInterval="1000",
        mappedFileSizeCommitLog=str(1024 * 1024),
        mappedFileSizeConsumeQueue=str(20 * 1000),
    )
    java.create_topic(deployment.address, deployment.broker.address, "Waits")
    soon, later, last = (Series("Waits", 5, first=at, body="waits") for at in (0, 100, 200))
    java.produce(deployment.address, soon, delay_level=1)
    java.produce(deployment.address, later, delay_level=2)
    java.consume(deployment.address, "Waits", "first", 5)
    if polite:
        deployment.broker.stop()
    else:
        deployment.broker.kill()
    deployment.start_again(second)
    java.produce(deployment.address, last, delay_level=1)
    expected = {message.body_sha256 for series in (soon, later, last) for message in series.expected()}
    consuming = java.start_consuming(deployment.address, "Waits", "second")
    consuming.wait_until(
        lambda: {event["bodySha256"] for event in consuming.named("message")} == expected, PATIENCE_S, "all come"
    )
    consuming.stop()
    if polite:  # a killed broker has not told the other system how far it was
        assert len(java.read_topic(deployment.address, "Waits", 15)) == 15, "nothing is delivered twice"


@pytest.mark.parametrize("system", BOTH, ids=lambda system: system.value)
async def test_our_client_delays_fails_and_sends_dead_letters_again(
    deploy: Callable[..., Deployment], system: System, tmp_path: Path
) -> None:
    deployment = deploy(system, messageDelayLevel=SHORT_LEVELS)
    seen_times: list[int] = []
    taken = asyncio.Event()
    broken = True

    async def listener(messages: Sequence[MessageExt]) -> Retry | None:
        seen_times.extend(message.reconsume_times for message in messages)
        if broken:
            return Retry()
        taken.set()
        return None

    async with Admin(deployment.address) as admin, Producer("interop", deployment.address) as producer:
        await admin.create_topic("Ours", queues=1)
        await producer.send(Message("Ours", b"poison", delay_level=2, keys=["k"]))
        config = PushConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=1)
        consumer = PushConsumer("ours", listener, deployment.address, config=config)
        await consumer.subscribe("Ours")

        async def dead_letters() -> list[MessageExt]:
            return [letter async for letter in read_dead_letters(admin, "ours", Selection(key="k"))]

        async with consumer, asyncio.timeout(PATIENCE_S):
            letters = await answered(dead_letters, timeout_s=PATIENCE_S)
            assert seen_times == [0, 1]
            assert [found.group for found in await dead_letter_groups(admin)] == ["ours"]
            broken = False
            assert await _sent_again(admin, tmp_path / "ledger") == [Outcome.SENT]
            await taken.wait()

            async def is_indexed() -> bool:  # Apache's index follows its log
                return len(await admin.query_message("Ours", letters[0].msg_id, unique_key=True)) == 2

            await answered(is_indexed, timeout_s=PATIENCE_S)
            notes = (tmp_path / "ledger").read_bytes().splitlines(keepends=True)
            (tmp_path / "ledger").write_bytes(notes[0])  # killed before it noted that the message was sent
            assert await _sent_again(admin, tmp_path / "ledger") == [Outcome.SENT_BEFORE]
        found = await admin.query_message("Ours", letters[0].msg_id, unique_key=True)
        assert found[-1].properties["RESENT_FROM"] == letters[0].offset_msg_id


async def _sent_again(admin: Admin, path: Path) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with Ledger(path) as ledger:
        await resend(
            admin, read_dead_letters(admin, "ours"), ledger, lambda _letter, outcome, _words: outcomes.append(outcome)
        )
    return outcomes
