"""The same tests for each engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.failover.conftest import LEASE_S
from tests.helpers.waiting import until

from cometmq.broker.failover.document import Document, Member, founding_document
from cometmq.broker.failover.engines.interface import Engine, Guard, NameTakenError, Presence, Standing

A, B = Member("a", 1), Member("b", 1)
Connect = Callable[[], Engine]


def presence(member: Member, process: str = "p1", **changes: object) -> Presence:
    return replace(Presence(member, process, "10.0.0.1:10911", "10.0.0.1:10912"), **changes)  # type: ignore[arg-type]


def founded() -> Document:
    return founding_document("5e7a1d5e", 1, A, 0).with_replica("a", "10.0.0.1:10911", "[::1]:10912")


async def test_a_set_is_founded_once(connect: Connect) -> None:
    engine = connect()
    assert (await engine.read()).document is None
    first = await engine.swap(founded(), "")
    second = await connect().swap(founding_document("aaaaaaaa", 1, B, 0), "")
    assert first.is_done
    assert not second.is_done
    assert second.document == founded()
    assert second.version == first.version


async def test_a_swap_needs_the_newest_version(connect: Connect) -> None:
    engine, other = connect(), connect()
    first = await engine.swap(founded(), "")
    expanded = founded().changed(frozenset({A, B}), "b#1 caught up", 1)
    assert (await other.swap(expanded, first.version)).is_done
    stale = await engine.swap(founded().changed(frozenset({A}), "too late", 1), first.version)
    assert not stale.is_done
    assert stale.document == expanded
    assert (await engine.read()).version == stale.version


async def test_a_repeated_swap_lands_once(connect: Connect) -> None:
    engine = connect()
    first = await engine.swap(founded(), "")
    proposal = founded().changed(frozenset({A, B}), "b#1 caught up", 1)
    outcomes = await asyncio.gather(*(connect().swap(proposal, first.version) for _ in range(5)))
    assert sorted(outcome.is_done for outcome in outcomes) == [False, False, False, False, True]
    assert {outcome.version for outcome in outcomes} == {(await engine.read()).version}


async def test_presences_have_their_content_and_a_version_that_renewals_keep(connect: Connect) -> None:
    engine = connect()
    frozen = presence(A, serves=7, standing=Standing(6, 5, 4096, -3))
    assert await engine.announce(frozen)
    found = (await engine.read()).presences["a"]
    assert found == frozen
    assert await engine.announce(frozen)
    assert (await engine.read()).presences["a"].version == found.version
    await engine.announce(presence(A))
    changed = (await engine.read()).presences["a"]
    assert changed.standing is None
    assert changed.version != found.version


async def test_a_presence_that_is_not_renewed_is_gone_and_its_process_learns_it(connect: Connect) -> None:
    engine, other = connect(), connect()
    await engine.announce(presence(A))
    begun = time.monotonic()
    assert "a" in (await other.read()).presences
    while "a" in (await other.read()).presences:
        await asyncio.sleep(0.05)
    assert time.monotonic() - begun > LEASE_S * 0.8
    assert not await engine.announce(presence(A))
    assert "a" in (await other.read()).presences


async def test_a_withdrawn_presence_is_gone_at_once(connect: Connect) -> None:
    engine = connect()
    await engine.announce(presence(A))
    await engine.withdraw()
    assert not (await engine.read()).presences


async def test_the_next_process_of_the_same_store_takes_the_name_over(connect: Connect) -> None:
    await connect().announce(presence(A, "p1", serves=3))
    await connect().announce(presence(A, "p2"))
    found = (await connect().read()).presences["a"]
    assert (found.process, found.serves) == ("p2", 0)


async def test_another_store_does_not_get_a_name_that_is_taken(connect: Connect) -> None:
    await connect().announce(presence(A))
    with pytest.raises(NameTakenError, match=r"the name a is taken by 10\.0\.0\.1:10911"):
        await connect().announce(presence(Member("a", 2), "p2"))


async def test_an_election_needs_the_old_masters_presence_to_be_gone(connect: Connect) -> None:
    engine, other = connect(), connect()
    first = await engine.swap(founded(), "")
    await engine.announce(presence(A, serves=1))
    elected = founded().elected(B, frozenset({B}), "b#1 was elected", 2)
    early = await other.swap(elected, first.version, Guard("a", ""))
    assert not early.is_done
    assert early.version == first.version
    await engine.withdraw()
    assert (await other.swap(elected, first.version, Guard("a", ""))).is_done


async def test_an_election_against_a_dead_process_removes_its_presence_unless_it_has_changed(connect: Connect) -> None:
    engine, other = connect(), connect()
    first = await engine.swap(founded(), "")
    await engine.announce(presence(A, "p1", serves=1))
    seen = (await other.read()).presences["a"].version
    await engine.announce(presence(A, "p1"))
    elected = founded().elected(B, frozenset({B}), "b#1 was elected", 2)
    assert not (await other.swap(elected, first.version, Guard("a", seen, removes=True))).is_done
    seen = (await other.read()).presences["a"].version
    assert (await other.swap(elected, first.version, Guard("a", seen, removes=True))).is_done
    assert not (await other.read()).presences
    assert not await engine.announce(presence(A, "p1"))


async def test_changes_are_told_for_the_document_and_for_presences_that_end(connect: Connect) -> None:
    engine, other = connect(), connect()
    told = 0

    async def watch() -> None:
        nonlocal told
        async for _ in other.changes():
            told += 1

    watching = asyncio.create_task(watch())
    try:
        await until(lambda: told)
        before = told
        await engine.swap(founded(), "")
        await until(lambda: told > before)
        await engine.announce(presence(A))
        await until(lambda: told > before + 1)
        before = told
        await until(lambda: told > before, timeout_s=LEASE_S * 3)
        assert not (await other.read()).presences
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
