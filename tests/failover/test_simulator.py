"""Failover in a simulator: no history breaks a rule, and each rule that is left out is found.

``python -m tests.failover.simulator --seconds 600`` runs longer, and prints the history of a seed that breaks a rule.
"""

from __future__ import annotations

import pytest
from tests.failover.simulator.faults import Rates
from tests.failover.simulator.mistakes import MISTAKES, made
from tests.failover.simulator.world import World

HISTORIES = 100
MOST_HISTORIES = 2_000


def test_no_history_breaks_a_rule() -> None:
    elections = power_losses = 0
    for seed in range(1, HISTORIES + 1):
        result = World(seed).run()
        if result.violation is not None:
            trace: list[str] = []
            World(seed, trace=trace).run()
            pytest.fail("\n".join(trace))
        elections += result.elections
        power_losses += result.power_losses
    assert elections > HISTORIES
    assert power_losses > HISTORIES


def test_without_faults_nothing_changes_after_the_start() -> None:
    result = World(1, rates=Rates()).run()
    assert result.violation is None
    assert result.elections == 1
    assert result.changes <= 6


def test_a_seed_replays_its_history() -> None:
    first: list[str] = []
    second: list[str] = []
    World(7, trace=first).run()
    World(7, trace=second).run()
    assert first == second
    assert len(first) > 100


@pytest.mark.parametrize("name", MISTAKES)
def test_a_rule_that_is_left_out_is_found(name: str) -> None:
    mistake = MISTAKES[name]
    with made(mistake):
        for seed in range(mistake.first_seed, mistake.first_seed + MOST_HISTORIES):
            if World(seed, rates=mistake.rates).run().violation is not None:
                return
    pytest.fail(f"{MOST_HISTORIES} histories are right although {mistake.what}")
