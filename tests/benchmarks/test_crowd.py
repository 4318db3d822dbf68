"""The crowd of clients sends, holds pulls, joins a group, and comes back after a restart."""

from __future__ import annotations

import pytest
from benchmarks.crowd import Case, crowd_table, measure
from tests.interop.systems import System

CLIENTS = 60


@pytest.mark.parametrize(
    ("case", "least_per_s"),
    [
        (Case("sends", "send", CLIENTS, 5, restarts=True), 30.0),
        (Case("pulls", "pull", CLIENTS, 100), 30.0),
        (Case("joins", "join", CLIENTS), 0.0),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_all_clients_are_served(case: Case, least_per_s: float) -> None:
    found, _ = measure(case, System.COMETMQ, 1.0)
    assert "failures" not in found
    assert found.get("messages/s", 0.0) >= least_per_s
    assert 0 < found["p50, ms"] <= found["p99, ms"] <= found["longest, ms"]
    if case.restarts:
        assert found["clients after it"] == CLIENTS
    if case.mode == "join":
        assert found["notices"] > 0


def test_a_figure_that_a_system_does_not_have_is_left_out() -> None:
    found = {("sends", System.APACHE): {"p50, ms": 2.0}, ("sends", System.COMETMQ): {"p50, ms": 1.0, "failures": 3.0}}
    assert crowd_table(found).splitlines()[2:] == ["| sends: p50, ms | 2.0 | 1.0 |", "| sends: failures | – | 3.0 |"]
