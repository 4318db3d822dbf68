"""Dead letters: found, read by what is known of them, and sent again once, also after a kill in the middle."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.client import Admin, Message, Producer
from cometmq.client.consumer.listener import Retry
from cometmq.client.dead_letters import (
    RESENT_FROM,
    Ledger,
    LedgerError,
    Outcome,
    Selection,
    dead_letter_groups,
    origin_topic,
    read_dead_letters,
    resend,
)
from cometmq.message.message import MessageExt
from cometmq.testing import Cluster, VirtualClock

BODY = bytes(range(256)) * 40
"""Large enough to be stored compressed."""
PROPERTIES = {"p": "v", "ORIGIN_GROUP": "workers"}
"""Those of a message that POP has given again."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Three dead letters of the group ``workers``, a second apart."""
    clock = VirtualClock()
    async with Cluster(clock=clock) as cluster:
        async with Producer("application", instance=cluster.client_instance()) as producer:
            giving_up = Retry(delay_level=-1)
            async with cluster.inbox("orders", "bills", group="workers", answer=giving_up) as inbox:
                await producer.send(Message("orders", BODY, tags="a", keys=["k1", "k2"], properties=PROPERTIES, flag=7))
                await inbox.expect(1)
                await producer.send(Message("orders", b"two", tags="b", keys=["k2"]))
                await inbox.expect(1)
                await producer.send(Message("bills", b"three"))
                await inbox.expect(1)
                await clock.run_for(1)
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(instance=cluster.client_instance()) as admin:
        yield admin


async def letters(admin: Admin, selection: Selection | None = None, limit: int | None = None) -> list[MessageExt]:
    return [letter async for letter in read_dead_letters(admin, "workers", selection, limit)]


async def each(found: list[MessageExt]) -> AsyncIterator[MessageExt]:
    for letter in found:
        yield letter


class Report(dict[str, Outcome]):
    """The outcome of each dead letter."""

    def __call__(self, letter: MessageExt, outcome: Outcome, words: str) -> None:
        self[letter.offset_msg_id] = outcome

    @property
    def outcomes(self) -> list[str]:
        return [outcome.value for outcome in self.values()]


async def again(admin: Admin, ledger: Path, *, rate: float | None = None) -> list[str]:
    """Send all of them again; what became of each."""
    report = Report()
    with Ledger(ledger) as notes:
        await resend(admin, each(await letters(admin)), notes, report, rate=rate)
    return report.outcomes


def stored(cluster: Cluster, topic: str) -> int:
    return sum(queue.max_offset() for queue in cluster.broker(0).store.queues()[topic].values())


async def test_groups_with_dead_letters_are_found(admin: Admin) -> None:
    (found,) = await dead_letter_groups(admin)
    assert (found.group, found.count) == ("workers", 3)
    times = [letter.store_timestamp for letter in await letters(admin)]
    assert (found.oldest_ms, found.newest_ms) == (min(times), max(times))


async def test_they_are_read_by_what_is_known_of_them(admin: Admin) -> None:
    all_three = await letters(admin)
    assert [(letter.body, origin_topic(letter)) for letter in all_three] == [
        (BODY, "orders"),
        (b"two", "orders"),
        (b"three", "bills"),
    ]
    _, second, third = all_three
    for selection, expected in (
        (Selection(key="k2"), [BODY, b"two"]),
        (Selection(tag="b"), [b"two"]),
        (Selection(origin_topic="bills"), [b"three"]),
        (Selection(ids=frozenset({second.offset_msg_id, third.msg_id})), [b"two", b"three"]),
        (Selection(begin_ms=third.store_timestamp + 1), []),
        (Selection(end_ms=second.store_timestamp, tag="b"), [b"two"]),
        (Selection(key="k2", tag="c"), []),
    ):
        assert [letter.body for letter in await letters(admin, selection)] == expected, selection
    assert len(await letters(admin, limit=2)) == 2
    assert [letter async for letter in read_dead_letters(admin, "nobody")] == []


async def test_each_is_sent_again_once_as_it_was(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    ledger = tmp_path / "sub" / "ledger"
    assert await again(admin, ledger) == ["sent"] * 3
    async with cluster.inbox("orders", "bills") as inbox:
        arrived = await inbox.expect(6)
    first_letter = (await letters(admin))[0]
    (copy,) = [message for message in arrived if message.properties.get(RESENT_FROM) == first_letter.offset_msg_id]
    assert (copy.topic, copy.body, copy.tags, copy.keys, copy.flag) == ("orders", BODY, "a", ("k1", "k2"), 7)
    assert (copy.msg_id, copy.reconsume_times, copy.properties["p"]) == (first_letter.msg_id, 0, "v")
    assert not {"DELAY", "ORIGIN_GROUP", "RETRY_TOPIC", "RECONSUME_TIME"} & copy.properties.keys(), (
        "its way begins anew"
    )
    assert await again(admin, ledger) == ["sent before"] * 3
    assert (stored(cluster, "orders"), stored(cluster, "bills")) == (4, 2)


@pytest.mark.parametrize("noted", [0, 1], ids=["before the send", "after the send"])
async def test_a_killed_resend_goes_on_without_sending_twice(
    cluster: Cluster, admin: Admin, tmp_path: Path, noted: int
) -> None:
    ledger = tmp_path / "ledger"
    if noted:
        await again(admin, ledger)
        lines = ledger.read_bytes().splitlines(keepends=True)
        ledger.write_bytes(b"".join(lines[:-1]) + lines[-1][:7])  # killed while it noted the last as sent
        assert await again(admin, ledger) == ["sent before"] * 3
    else:
        first = (await letters(admin))[0]
        with Ledger(ledger) as notes:
            notes.intend(first.offset_msg_id)
        assert await again(admin, ledger) == ["sent"] * 3
    assert (stored(cluster, "orders"), stored(cluster, "bills")) == (4, 2)


async def test_without_its_ledger_they_are_sent_once_more(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    await again(admin, tmp_path / "one")
    await again(admin, tmp_path / "two")
    assert stored(cluster, "orders") == 6


async def test_failures_are_told_and_may_be_repeated(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    await admin.delete_topic("bills")
    ledger = tmp_path / "ledger"
    assert await again(admin, ledger) == ["sent", "sent", "failed"]
    await cluster.create_topic("bills")
    assert await again(admin, ledger) == ["sent before", "sent before", "sent"]


async def test_a_rate_is_kept(cluster: Cluster, admin: Admin, tmp_path: Path) -> None:
    clock = cluster.clock
    assert isinstance(clock, VirtualClock)
    began = clock.monotonic()
    outcomes = await clock.run_until(again(admin, tmp_path / "ledger", rate=0.5), within_s=60)
    assert outcomes == ["sent"] * 3
    assert clock.monotonic() - began == pytest.approx(4, abs=0.5)


def test_another_file_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("[1]\n")
    with pytest.raises(LedgerError, match="specify another file with --ledger"), Ledger(tmp_path / "ledger"):
        pass
    with pytest.raises(LedgerError), Ledger(tmp_path):
        pass
