"""A broker that hangs: commands that look show the others, say so and end with 3; those that change fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.cli.conftest import CommandLine

from cometmq.testing import ProcessCluster

WAIT = ("--timeout", "0.5")


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """Two brokers with a topic and a group; the second one hangs."""
    with ProcessCluster(brokers=2, data=tmp_path_factory.mktemp("half")) as cluster:
        cometmq = CommandLine(cluster.namesrv_address)
        assert cometmq("topic", "create", "spread", "--queues", "1").code == 0
        assert cometmq("produce", "spread", "--count", "4", "--batch", "1", "--key", "k").code == 0
        assert cometmq("consume", "spread", "--group", "g", "--from-beginning", "--until-end").code == 0
        stopped = cluster.brokers[1].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        try:
            yield cometmq
        finally:
            os.kill(stopped, signal.SIGCONT)


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "stats", "spread"),
        ("topic", "describe", "spread"),
        ("group", "offsets", "g"),
        ("group", "list"),
        ("message", "query", "--topic", "spread", "--key", "k"),
    ],
    ids=" ".join,
)
def test_the_others_are_shown(half: CommandLine, words: tuple[str, ...]) -> None:
    shown = half(*words, *WAIT, "-o", "json")
    assert shown.code == 3
    assert shown.json() != []
    assert shown.err.startswith("cometmq: left out: ")


def test_changes_fail(half: CommandLine) -> None:
    failed = half("topic", "alter", "spread", "--queues", "2", "--yes", *WAIT)
    assert failed.code == 1
    assert half("group", "delete", "g", "--yes", *WAIT).code == 1


def test_doctor_finds_the_broker_that_does_not_answer(half: CommandLine) -> None:
    checked = half("doctor", "--cluster", *WAIT, "-o", "json")
    assert checked.code == 1
    states = {row["check"]: row["state"] for row in checked.json()}
    assert (states["broker-0 answers"], states["broker-1 answers"]) == ("ok", "problem")
