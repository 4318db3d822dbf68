"""The checker finds each planted mistake, and nothing in right histories."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.failover.checker.findings import Finding, report
from tests.failover.checker.groups import check_groups
from tests.failover.checker.history import History
from tests.failover.checker.masters import check_masters
from tests.failover.checker.planted import EPOCHS, MASTERS, PLANTS, right_history
from tests.failover.checker.queues import check_queues, totals
from tests.failover.checker.register import Call, check_documents, check_register
from tests.failover.checker.replicas import LogCopy, check_replicas

from cometmq.broker.failover.document import Document, Member, founding_document

SEEDS = range(1, 21)
FIRST_WORDS = {
    "an acknowledged message is gone": "lost",
    "a message comes from nowhere": "unexpected",
    "a queue offset is given again": "inconsistent offsets",
    "a log offset is given again": "inconsistent offsets",
    "a message goes before an acknowledged one": "nonmonotonic send",
}
"""The word that must be among the findings, if there may be several."""


def check(history: History) -> list[Finding]:
    return [*check_queues(history), *check_groups(history), *check_masters(history, EPOCHS, MASTERS)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_history_has_no_findings(seed: int) -> None:
    history = right_history(seed)
    assert report(history, check(history)) == "nothing found"
    counted = totals(history)
    assert counted.acknowledged > 40
    assert counted.refused
    assert counted.recovered
    assert counted.repeated


@pytest.mark.parametrize("what", PLANTS)
def test_a_planted_mistake_is_found_and_named(what: str) -> None:
    plant, kinds = PLANTS[what]
    for seed in SEEDS:
        history = right_history(seed)
        plant(history, random.Random(seed))
        findings = check(history)
        found = {one.kind for one in findings}
        assert FIRST_WORDS.get(what, next(iter(kinds))) in found, f"seed {seed}: {found}"
        assert found <= kinds, report(history, findings)


def test_the_report_shows_the_operations_of_a_finding_among_the_faults() -> None:
    history = right_history(1)
    history.note("a is killed")
    plant, _ = PLANTS["an acknowledged message is gone"]
    plant(history, random.Random(1))
    (lost,) = [one for one in check_queues(history) if one.kind == "lost"]
    (value,) = lost.values
    text = report(history, [lost])
    assert text.startswith(f"lost: {value} was acknowledged by ")
    assert f"sends {value} to" in text
    assert "-- a is killed" in text
    assert len(text.splitlines()) < len(history.operations)


def test_a_history_is_written_for_programs(tmp_path: Path) -> None:
    history = right_history(1)
    history.write(tmp_path / "history.jsonl")
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(history.operations)


# --- logs of the members ----------------------------------------------------------------------------
def test_logs_are_compared_below_the_confirmed_end_whatever_their_beginning() -> None:
    logs = {"a": LogCopy(0, b"0123456789"), "b": LogCopy(4, b"456789"), "c": LogCopy(0, b"01234567??")}
    assert check_replicas(logs, 8) == []
    (finding,) = check_replicas(logs, 10)
    assert finding.kind == "different replicas"
    assert "a and c differ at 8" in finding.text


def test_a_log_that_ends_before_the_confirmed_end_is_found() -> None:
    (finding,) = check_replicas({"a": LogCopy(0, b"0123"), "b": LogCopy(0, b"012")}, 4)
    assert finding.kind == "short replica"


# --- the document -----------------------------------------------------------------------------------
CHAIN = ["", "1", "2", "3"]
CALLS = [
    Call("a", 0, 1, "1", "", is_done=True),
    Call("b", 0.5, 1.5, "1", "", is_done=False),
    Call("b", 2, 3, "2", "1", is_done=True),
    Call("a", 2, 9, None, "2"),
    Call("c", 2.5, 2.8, "1"),
    Call("c", 4, 5, "3"),
]


def test_a_linearizable_register_has_no_findings() -> None:
    assert check_register(CALLS, CHAIN) == []


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (Call("c", 6, 7, "2"), "stale read"),
        (Call("c", 6, 7, "77"), "unknown version"),
        (Call("c", 2, 3, "2", "1", is_done=True), "two swaps"),
        (Call("c", 6, 7, "3", "1", is_done=True), "broken chain"),
    ],
)
def test_calls_that_no_register_answers_are_found(call: Call, kind: str) -> None:
    assert kind in {one.kind for one in check_register([*CALLS, call], CHAIN)}


def test_documents_follow_the_protocol() -> None:
    a, b, c = Member("a", 1), Member("b", 1), Member("c", 1)
    first = founding_document("5f3c5f3c", 1, a, 0)
    second = first.changed(frozenset({a, b}), "b has caught up", 0)
    third = second.elected(b, frozenset({b}), "a is gone", 0)
    right = [first, second, third]
    assert check_documents(right) == []
    wrong: list[tuple[Document, str]] = [
        (third.changed(frozenset({b}), "", 0).elected(c, frozenset({b}), "", 0), "the serial numbers do not"),
        (third.elected(c, frozenset({c}), "", 0), "was not in the in-sync set"),
        (replace(third.changed(third.in_sync | {a}, "", 0), master=a), "two masters"),
        (replace(third.elected(b, third.in_sync, "", 0), epoch=9), "epochs do not follow"),
        (replace(third.changed(third.in_sync, "", 0), set_id="99999999"), "another set"),
    ]
    for document, text in wrong:
        assert text in "\n".join(map(str, check_documents([*right, document])))
    forced = third.elected(c, frozenset({c}), "a person", 0)
    assert check_documents([*right, forced], forced=frozenset({3})) == []
