"""The cluster page shows sets that elect their master: members, what a person must do, and the last changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.helpers.consoles import Surfer, console_of
from tests.helpers.member_brokers import BrokerSet, broker_set
from tests.helpers.waiting import wait_for

from cometmq.console.server import ConsoleServer
from cometmq.testing.sync import SyncCluster


@pytest.fixture
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture
def brokers(cluster: SyncCluster, tmp_path: Path) -> Iterator[BrokerSet]:
    with broker_set(cluster, tmp_path / "set") as running:
        yield running


@pytest.fixture
def console(cluster: SyncCluster, brokers: BrokerSet, tmp_path: Path) -> Iterator[ConsoleServer]:
    with console_of(cluster, tmp_path / "console") as server:
        yield server


def shown(surfer: Surfer, *words: str) -> str:
    """The words of the cluster page, once its last look at the cluster has found these."""
    found = ""

    def look() -> bool:
        nonlocal found
        found = surfer.get("/").words
        return all(re.search(word, found) for word in words)

    try:
        wait_for(look, f"{words} on the cluster page")
    except TimeoutError as late:
        late.add_note(found)
        raise
    return found


def test_a_set_is_shown_with_its_members_and_the_last_changes(
    cluster: SyncCluster, brokers: BrokerSet, tmp_path: Path
) -> None:
    brokers.members["a"].append(5_000)
    with console_of(cluster, tmp_path / "console") as console:  # which looks at the set from here on
        shown(
            Surfer(console.url),
            r"Master a Epoch 1 In sync 3 of 3 Needed in sync 1 Not confirmed 0 bytes Decided by memory",
            r"a 127\.0\.0\.1:\d+ master yes 5,100 0 bytes 20",
            r"b 127\.0\.0\.1:\d+ follower yes 5,100 0 bytes 20",
            r"Last changes .* [bc]#1 caught up",
        )


def test_a_dead_master_is_shown_with_what_happens_next(console: ConsoleServer, brokers: BrokerSet) -> None:
    surfer = Surfer(console.url)
    shown(surfer, "Failover of orders")
    brokers.kill("a")
    words = shown(surfer, "Master none", "orders has no master at the moment: b#1, c#1 can be elected, within seconds")
    assert re.search(r"a 127\.0\.0\.1:\d+ does not answer", words)


def test_reasons_are_shown_in_the_language_of_the_reader(console: ConsoleServer, brokers: BrokerSet) -> None:
    surfer = Surfer(console.url, cookies={"language": "zh"})
    words = shown(surfer, "orders 的故障切换")
    assert "c#1 已追上" in words
    assert "a#1 创建了该组" in words


def test_a_cluster_without_failover_has_no_such_section(cluster: SyncCluster, tmp_path: Path) -> None:
    with console_of(cluster, tmp_path) as server:
        assert "Failover" not in shown(Surfer(server.url), "Brokers 1")


def test_only_the_newest_sample_keeps_the_sets(console: ConsoleServer, brokers: BrokerSet) -> None:
    sampler = console.console.sampler
    wait_for(lambda: len(sampler.samples) >= 2 and bool(sampler.samples[-1].sets), "two samples")
    assert [bool(sample.sets) for sample in list(sampler.samples)[:-1]] == [False] * (len(sampler.samples) - 1)
