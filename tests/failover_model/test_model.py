"""The rules of an election without a loss hold in every walk, and each of them is needed."""

from __future__ import annotations

import pytest
from tests.failover_model.model import BrokenRuleError, Fault, Totals, World

WALKS = 40
UNTIL_FOUND = 400
"""Walks in which every fault is found; most need fewer than ten."""


def walks(number: int, faults: frozenset[Fault] = frozenset()) -> Totals:
    return sum((World(seed, faults).walk() for seed in range(number)), Totals())


def test_no_walk_loses_an_acknowledged_record() -> None:
    totals = walks(WALKS)
    assert totals.acknowledged > 10 * WALKS
    assert totals.elections > WALKS
    assert totals.power_losses > WALKS


@pytest.mark.parametrize("fault", Fault)
def test_a_rule_that_is_left_out_is_found(fault: Fault) -> None:
    with pytest.raises(BrokenRuleError):
        walks(UNTIL_FOUND, frozenset({fault}))


def test_a_seed_replays() -> None:
    with pytest.raises(BrokenRuleError) as first:
        walks(UNTIL_FOUND, frozenset({Fault.ANY}))
    with pytest.raises(BrokenRuleError) as second:
        walks(UNTIL_FOUND, frozenset({Fault.ANY}))
    assert str(first.value) == str(second.value)
