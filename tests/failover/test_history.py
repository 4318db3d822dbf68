"""The end of what two logs have in common."""

from __future__ import annotations

import random
import time

import pytest

from cometmq.broker.failover.history import History, HistoryError, common_end
from cometmq.broker.limits import MAX_FAILOVER_EPOCHS


@pytest.mark.parametrize(
    ("mine", "masters", "end"),
    [
        (History((), 0), History(((1, 0),), 50), 0),
        (History(((1, 0),), 50), History(((1, 0),), 50), 50),
        (History(((1, 0),), 50), History(((1, 0),), 80), 50),
        (History(((1, 0),), 80), History(((1, 0), (2, 60)), 90), 60),
        (History(((1, 0), (2, 60)), 90), History(((1, 0), (3, 60)), 90), 60),
        (History(((1, 0), (2, 60)), 90), History(((1, 0), (3, 70)), 90), 60),
        (History(((1, 0), (2, 60), (4, 95)), 99), History(((1, 0), (2, 60), (3, 80)), 90), 80),
        (History((), 40), History(((1, 100),), 200), 40),
        (History((), 120), History(((1, 100),), 200), 100),
        (History((), 0), History(((5, 500),), 600, 300), 300),
    ],
)
def test_logs_are_the_same_up_to_their_last_common_epoch(mine: History, masters: History, end: int) -> None:
    assert common_end(mine, masters) == end


def test_a_log_that_ends_before_the_masters_begins_cannot_go_on() -> None:
    with pytest.raises(HistoryError, match=r"begins at 300.*start with an empty store"):
        common_end(History(((1, 0),), 50), History(((5, 400),), 600, 300))


@pytest.mark.parametrize(
    "history",
    [
        History(((2, 0), (1, 50)), 100),
        History(((1, 50), (2, 0)), 100),
        History(((1, 0), (1, 50)), 100),
        History(((0, 0),), 100),
        History(((1, -5),), 100),
        History(((1, 100),), 100),
        History((), -1),
        History((), 5, 10),
        History(tuple((n + 1, n) for n in range(70_000)), 70_000),
    ],
)
def test_a_list_of_epochs_that_no_log_has_is_refused(history: History) -> None:
    with pytest.raises(HistoryError, match="invalid list of epochs"):
        history.checked()


def test_a_marker_that_retention_has_deleted_still_tells_the_epoch() -> None:
    mine, masters = History(((1, 50),), 100, 60), History(((1, 50), (2, 90)), 200, 80)
    assert mine.checked() is mine
    assert common_end(mine, masters.checked()) == 90


def test_the_common_end_is_that_of_the_bytes() -> None:
    """Logs grow, are copied and are cut as in a set; the epochs alone must give what comparing all bytes gives."""
    for seed in range(300):
        rng = random.Random(seed)
        logs: list[list[tuple[int, int]]] = [[], [], []]
        number = 0
        for epoch in range(1, 13):
            master = rng.randrange(3)
            logs[master].append((epoch, 0))
            for _ in range(rng.randrange(5)):
                number += 1
                logs[master].append((epoch, number))
            for other in {0, 1, 2} - {master}:
                mine, masters = logs[other], logs[master]
                same = next((i for i, (x, y) in enumerate(zip(mine, masters, strict=False)) if x != y), None)
                expected = min(len(mine), len(masters)) if same is None else same
                assert common_end(history(mine), history(masters).checked()) == expected
                if rng.random() < 0.6:
                    logs[other] = masters[: rng.randint(expected, len(masters))]


def history(log: list[tuple[int, int]]) -> History:
    return History(tuple((epoch, at) for at, (epoch, number) in enumerate(log) if not number), len(log))


def test_the_longest_lists_of_epochs_without_a_common_one_are_compared_at_once() -> None:
    """The event loop waits for it; comparing each with each would take minutes."""
    mine = History(tuple((2 * at + 1, at) for at in range(MAX_FAILOVER_EPOCHS)), MAX_FAILOVER_EPOCHS)
    masters = History(tuple((2 * at + 2, at) for at in range(MAX_FAILOVER_EPOCHS)), MAX_FAILOVER_EPOCHS)
    began = time.process_time()
    assert common_end(mine, masters.checked()) == 0
    assert time.process_time() - began < 5
