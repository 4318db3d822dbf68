"""What members say is combined: the master, the longest log, and what a person must do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cometmq.client.admin.failover.sets import BrokerSet, SetMember
from cometmq.remoting.failover.bodies import FailoverDocument, FailoverPresence, FailoverReplica, FailoverStatus

DOCUMENT = FailoverDocument(
    4,
    9,
    "a#1",
    ["a#1", "b#1"],
    "a#1 was elected",
    0,
    "5e7a",
    [FailoverReplica(n, f"{n}:1", f"{n}:2", i) for i, n in enumerate("abc", 1)],
)


def said(member: str, state: str, **values: Any) -> SetMember:
    """A member that answers."""
    given: dict[str, Any] = {
        "end": 100,
        "log_epoch": 4,
        "epoch": 4,
        "reason": "r",
        "engine_trouble": "",
        "refusal": "",
        "next_step": "",
    }
    status = FailoverStatus(
        cluster="c",
        broker_name="orders",
        member=member,
        address=f"{member[0]}:1",
        state=state,
        since_ms=0,
        begin=0,
        flushed=100,
        confirmed=90,
        engine="etcd",
        min_in_sync=1,
        priority=0,
        document=DOCUMENT,
        **(given | values),
    )
    return SetMember(member[0], f"{member[0]}:1", status, in_sync=member in DOCUMENT.in_sync)


def silent(name: str) -> SetMember:
    return SetMember(name, f"{name}:1", problem="connection refused", in_sync=f"{name}#1" in DOCUMENT.in_sync)


def found(*members: SetMember, document: FailoverDocument | None = DOCUMENT) -> BrokerSet:
    return BrokerSet("c", "orders", members, document)


def test_a_whole_set_needs_nobody() -> None:
    whole = found(said("a#1", "master", end=120), said("b#1", "follower"))
    assert (whole.to_do(), whole.is_whole, whole.unconfirmed) == ([], True, 30)
    assert whole.master is not None
    assert [whole.behind(one) for one in whole.members] == [0, 20]


def test_a_master_of_an_older_epoch_is_not_the_master() -> None:
    """A master that was cut off still says that it is one."""
    cut = found(said("a#1", "master", epoch=3), said("b#1", "master"))
    assert cut.master is not None
    assert cut.master.name == "b"
    assert found(said("a#1", "master", epoch=3), said("b#1", "follower")).master is None


def test_the_longest_log_has_the_last_epoch_and_not_the_most_bytes() -> None:
    older = said("b#1", "follower", end=900, log_epoch=3)
    newer = said("c#1", "follower", end=100, log_epoch=4)
    halted = said("a#1", "halted", end=999, log_epoch=9)
    longest = found(older, newer, halted).longest
    assert longest is newer


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ((silent("a"), said("b#1", "frozen")), ["at the moment: b#1 can be elected, within seconds"]),
        (
            (silent("a"), said("b#1", "frozen", engine_trouble="401")),
            ["the engine does not answer (401); repair it"],
        ),
        (
            (silent("a"), said("b#2", "follower"), said("c#1", "follower", end=300)),
            [
                "nobody may be elected: a#1 does not answer",
                "b lost its power with unflushed bytes, or its disk: it is b#2, not b#1",
                "start a or b",
                "cometmq failover force -b orders --member c",
                "the longest log (300 bytes, epoch 4)",
            ],
        ),
        (
            (silent("a"), silent("b")),
            ["nobody may be elected: a#1 does not answer; b#1 does not answer (start a or b)"],
        ),
        (
            (said("a#1", "halted", reason="two members are called a", next_step="rename"), silent("b")),
            ["nobody may be elected: b#1 does not answer", "a has halted: two members are called a (rename)"],
        ),
        (
            (
                said("a#1", "halted", reason="restored", next_step="x"),
                said("b#1", "halted", reason="restored", next_step="x"),
            ),
            ["waits for a person: a#1, b#1 have halted", "a has halted: restored (x)", "b has halted: restored (x)"],
        ),
    ],
)
def test_a_set_without_a_master_says_what_to_do(members: tuple[SetMember, ...], words: list[str]) -> None:
    text = " | ".join(found(*members).to_do())
    assert [one for one in words if one not in text] == [], text
    assert text.startswith("orders has no master")


def test_a_master_that_refuses_or_has_no_engine_is_reported() -> None:
    few = found(said("a#1", "master", refusal="1 members are in sync, fewer than minInSyncReplicas=2"), silent("b"))
    assert few.to_do() == [
        "a refuses messages: 1 members are in sync, fewer than minInSyncReplicas=2",
        "b does not answer: connection refused (start it)",
    ]
    (away,) = found(said("a#1", "master", engine_trouble="timeout"), said("b#1", "follower")).to_do()
    assert away == (
        "the engine does not answer (timeout): the set goes on, but cannot replace a member that dies (repair etcd)"
    )


def test_a_member_that_takes_office_is_not_called_dead() -> None:
    """Its port is closed while it changes its role; its presence in the engine tells that it lives."""
    there = [FailoverPresence("a#1", "a:1", 4), FailoverPresence("b#1", "b:1", 0)]
    texts = found(silent("a"), said("b#1", "follower", presences=there)).to_do()
    assert texts == [
        "orders has no master at the moment: a takes office, or has just died (look again)",
        "a does not answer: connection refused (it was alive a moment ago: look again, then start it)",
    ]
    gone = found(silent("a"), said("b#1", "follower", presences=there[1:])).to_do()
    assert gone[0] == "orders has no master at the moment: b#1 can be elected, within seconds"


def test_nobody_has_read_the_document() -> None:
    (text,) = found(said("a#1", "starting"), document=None).to_do()
    assert text == "orders has no master: no member has read the set's document (see why below)"


def test_a_twin_does_not_hide_the_member_whose_name_it_has() -> None:
    twin = said("a#9", "halted", reason="two members are called a", next_step="rename", epoch=0)
    both = found(replace(twin, address="10.0.0.9:1"), said("a#1", "master"), said("b#1", "follower"))
    assert both.master is not None
    assert both.member("a") is both.master
    assert both.to_do() == ["a has halted: two members are called a (rename)"]
