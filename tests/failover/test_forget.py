"""Replicas that never come back leave the document, by a person's command or when the document is full."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.failover.test_machine import DOCUMENT, A, B, C, Driver, there

from cometmq.broker.failover import events as e
from cometmq.broker.failover.document import Document, Member, decode_document, encode_document
from cometmq.broker.failover.options import CommandRefusedError
from cometmq.broker.limits import MAX_FAILOVER_MEMBERS

ALONE = replace(DOCUMENT.with_replica("c", "c:1", "c:2"), in_sync=frozenset({A}))


def names(document: Document) -> list[str]:
    return [one.name for one in document.replicas]


def leads(document: Document = ALONE) -> Driver:
    driver = Driver()
    driver.lead(document)
    return driver


def test_a_forgotten_replica_leaves_the_document_and_its_broker_id_is_free() -> None:
    driver = leads()
    driver.give(e.Forget("b"))
    swap = driver.last(e.Swap)
    assert (names(swap.document), swap.document.in_sync, swap.document.epoch) == (["a", "c"], frozenset({A}), 1)
    assert "the replica b was removed" in swap.document.why
    driver.give(e.SwapAnswered(swap.number, True, swap.document, "6"))
    driver.give(e.SignedIn(Member("d", 1), 1, "d:1", "d:2"))
    assert driver.last(e.Swap).document.replica("d").broker_id == 2


def test_a_replica_that_returns_is_in_the_document_again() -> None:
    driver = leads()
    driver.give(e.Forget("b"))
    swap = driver.last(e.Swap)
    driver.give(e.SwapAnswered(swap.number, True, swap.document, "6"))
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    assert names(driver.last(e.Swap).document) == ["a", "b", "c"]


def test_a_replica_that_is_part_of_the_set_is_not_forgotten() -> None:
    follower = Driver()
    follower.answer(replace(DOCUMENT, master=B, in_sync=frozenset({A, B})), "5", there(B, 1))
    with pytest.raises(CommandRefusedError, match="ask the master"):
        follower.give(e.Forget("b"))
    driver = Driver()
    driver.lead(ALONE, there(B))
    for name, why in (("a", "in sync or present"), ("b", "in sync or present"), ("x", "no replica x.*one of a, b, c")):
        with pytest.raises(CommandRefusedError, match=why):
            driver.give(e.Forget(name))
    assert not [one for one in driver.asked if isinstance(one, e.Swap)]


def full(*, present: int) -> Driver:
    """A master of a set whose document is full, with this number of replicas that are present."""
    document = ALONE
    for number in range(MAX_FAILOVER_MEMBERS - len(ALONE.replicas)):
        document = document.with_replica(f"old-{number:02}", f"old-{number:02}:1", f"old-{number:02}:2")
    assert len(document.replicas) == MAX_FAILOVER_MEMBERS
    driver = Driver()
    others = [one.name for one in document.replicas[:present] if one.name != A.name]
    driver.lead(document, *(there(Member(name, 1)) for name in others))
    return driver


def test_a_new_replica_takes_the_place_of_one_that_is_gone() -> None:
    driver = full(present=3)
    driver.give(e.SignedIn(Member("new", 1), 1, "new:1", "new:2"))
    removed = driver.last(e.Swap)
    assert len(names(removed.document)) == MAX_FAILOVER_MEMBERS
    assert "new" in names(removed.document)
    assert "old-00" not in names(removed.document)
    assert decode_document(encode_document(removed.document)) == removed.document


def test_a_set_that_is_full_of_live_replicas_keeps_a_document_that_can_be_read() -> None:
    driver = full(present=MAX_FAILOVER_MEMBERS)
    driver.give(e.SignedIn(Member("new", 1), 1, "new:1", "new:2"))
    driver.give(e.SignedIn(C, 1, "elsewhere:1", "elsewhere:2"))
    document = driver.last(e.Swap).document
    assert decode_document(encode_document(document)) == document
    assert "new" not in names(document)


def test_addresses_of_an_earlier_epoch_do_not_come_back() -> None:
    driver = leads()
    driver.give(e.SignedIn(B, 1, "b:1", "b:2"))
    forgotten = replace(ALONE, epoch=2, serial=9, master=C, in_sync=frozenset({A, C})).without_replicas({"b"})
    driver.give(e.EngineChanged())
    driver.answer(forgotten, "9", there(C, 2))
    driver.give(e.EngineChanged())
    driver.answer(replace(forgotten, epoch=3, serial=10, master=A), "10", there(C))
    driver.give(e.InOffice(3, 5, e.LogState(5, 5, 3)))
    driver.give(e.SignedIn(Member("d", 1), 3, "d:1", "d:2"))
    assert sorted(names(driver.last(e.Swap).document)) == ["a", "c", "d"]
