"""``cometmq failover`` with the real command, against the brokers of a set."""

from __future__ import annotations

import os
import pty
import re
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.member_brokers import BrokerSet, broker_set

from cometmq.broker.failover import events as e
from cometmq.testing.sync import SyncCluster


@pytest.fixture
def cluster() -> Iterator[SyncCluster]:
    """A nameserver, and a broker without failover."""
    with SyncCluster() as running:
        yield running


@pytest.fixture
def cometmq(cluster: SyncCluster) -> CommandLine:
    return CommandLine(cluster.namesrv_address)


@pytest.fixture
def brokers(cluster: SyncCluster, tmp_path: Path) -> Iterator[BrokerSet]:
    with broker_set(cluster, tmp_path) as running:
        yield running


# --- status ------------------------------------------------------------------------------------------
def test_the_table_shows_each_member(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.members["a"].append(2_000)
    shown = cometmq("failover", "status")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert re.search(r"orders +a +master +yes +1 +1 +2100 +0 +20", shown.out)
    assert re.search(r"orders +b +follower +yes +1 +1 +2100 +0 +20", shown.out)
    assert len([line for line in lines if line.startswith("orders")]) == 3
    assert "broker-0" not in shown.out + shown.err, "a broker without failover has no place here"
    assert re.search(r"Last change of orders: 20.*caught up\.", shown.err)
    assert "To do" not in shown.err


def test_json_has_the_whole_set(cometmq: CommandLine, brokers: BrokerSet) -> None:
    (found,) = cometmq("failover", "status", "-b", "orders", "-o", "json").json()
    assert (found["set"], found["master"], found["epoch"], found["in_sync"]) == (
        *("orders", "a", 1),
        ["a#1", "b#1", "c#1"],
    )
    assert (found["confirmed"], found["min_in_sync"], found["engine"], found["to_do"]) == (100, 1, "memory", [])
    assert [one["member"] for one in found["members"]] == ["a", "b", "c"]
    assert found["changes"][0]["why"].endswith("caught up")
    assert found["changes"][-1]["why"] == "a#1 founded the set"
    (line,) = cometmq("failover", "status", "-o", "jsonl").lines()
    assert line["set"] == "orders"
    assert cometmq("failover", "status", "-o", "csv").out.startswith("set,member,state,in_sync,generation,epoch")


def test_the_last_changes_have_their_reasons(cometmq: CommandLine, brokers: BrokerSet) -> None:
    cometmq("failover", "handover", "-b", "orders", "--to", "b", "--why", "new kernel")
    shown = cometmq("failover", "status", "--changes")
    assert re.search(r"20.* 2 +b#1 .*handed over by a person at [0-9.:]+: new kernel", shown.out)


def test_a_member_that_is_dead_is_shown_with_what_the_master_knows(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.kill("c")
    brokers.members["a"].append(500)
    shown = cometmq("failover", "status")
    assert shown.code == 3
    assert re.search(r"orders +c +does not answer +no", shown.out), shown.out
    assert "To do: c does not answer: " in shown.err
    (found,) = cometmq("failover", "status", "-o", "json").json()
    assert found["in_sync"] == ["a#1", "b#1"]


def test_a_set_without_a_master_says_who_may_be_elected(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.kill("a")
    shown = cometmq("failover", "status")
    assert shown.code == 1
    assert "orders has no master at the moment: b#1, c#1 can be elected, within seconds" in shown.err
    for member in brokers.members.values():
        member.is_cut = True
        member.give(e.EngineChanged())
    assert (
        "the engine does not answer (no endpoint of the engine answers); repair it" in cometmq("failover", "status").err
    )


def test_members_are_found_although_no_nameserver_knows_them(cometmq: CommandLine, brokers: BrokerSet) -> None:
    cut_off = CommandLine("127.0.0.1:1")
    shown = cut_off("failover", "status", "--server", brokers.address("b"))
    assert shown.code == 0, shown.err
    assert len([line for line in shown.out.splitlines() if line.startswith("orders")]) == 3
    brokers.kill("a")
    brokers.kill("b")
    alone = cut_off("failover", "status", "--server", brokers.address("c"))
    assert alone.code == 1
    assert re.search(r"orders +a +does not answer", alone.out)


def test_halted_members_say_why_and_what_to_do(cometmq: CommandLine, brokers: BrokerSet) -> None:
    for member in brokers.members.values():
        member.give(e.DocumentRead(10**6, None, "", {}))
    shown = cometmq("failover", "status")
    assert shown.code == 1
    assert shown.out.count("halted") == 3
    assert "To do: a has halted: the engine has no document, and has had epoch 1" in shown.err
    assert "--bootstrap" in shown.err


def test_a_twin_and_the_member_whose_name_it_has_are_both_shown(
    cometmq: CommandLine, cluster: SyncCluster, brokers: BrokerSet, tmp_path: Path
) -> None:
    with broker_set(cluster, tmp_path / "twin", "orders", ("a",)) as twin:
        twin.members["a"].give(e.DocumentRead(10**6, None, "", {}))
        shown = cometmq("failover", "status", "--server", brokers.address("a"), "--server", twin.address("a"))
        assert re.search(r"orders +a +master", shown.out)
        assert re.search(r"orders +a +halted", shown.out)
        assert shown.code == 3


def test_a_cluster_without_failover_says_what_to_set(cometmq: CommandLine) -> None:
    shown = cometmq("failover", "status")
    assert shown.code == 1
    assert "no broker has failover (set failover=etcd or failover=kubernetes in broker.conf" in shown.err
    assert "broker-0 has no failover" in cometmq("failover", "status", "-b", "broker-0").err
    assert "does not know broker x, it knows" in cometmq("failover", "handover", "-b", "x").err


# --- handover ----------------------------------------------------------------------------------------
def test_a_handover_tells_the_new_master(cometmq: CommandLine, brokers: BrokerSet) -> None:
    done = cometmq("failover", "handover", "--to", "c")
    assert done.code == 0, done.err
    assert re.search(r"c is the master of orders \(\d\.\d s\)\.", done.err)
    again = cometmq("failover", "handover", "--to", "c")
    assert (again.code, "c is already the master of orders; nothing was changed" in again.err) == (0, True)


def test_a_dry_run_of_a_handover_changes_nothing(cometmq: CommandLine, brokers: BrokerSet) -> None:
    shown = cometmq("failover", "handover", "--dry-run")
    assert (shown.code, "Nothing was changed" in shown.err) == (0, True)
    assert re.search(r"orders +master +a +[bc]", shown.out)
    assert brokers.members["a"].machine.epoch == 1


def test_a_handover_to_a_member_that_is_not_in_sync_is_refused(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.kill("c")
    refused = cometmq("failover", "handover", "--to", "c")
    assert refused.code == 1
    assert "c is not in sync, so nobody can take over (wait until cometmq failover status shows" in refused.err


def test_with_several_sets_one_must_be_chosen(cometmq: CommandLine, cluster: SyncCluster, tmp_path: Path) -> None:
    with broker_set(cluster, tmp_path / "1"), broker_set(cluster, tmp_path / "2", "payments", ("d", "e")):
        assert cometmq("failover", "status").out.count("master") == 2
        refused = cometmq("failover", "handover")
        assert (refused.code, "choose one with -b: orders, payments" in refused.err) == (2, True)
        assert cometmq("failover", "handover", "-b", "payments").code == 0


# --- force -------------------------------------------------------------------------------------------
def test_force_is_refused_while_the_set_has_a_master(cometmq: CommandLine, brokers: BrokerSet) -> None:
    refused = cometmq("failover", "force", "--yes")
    assert (refused.code, "orders has a master, a (use cometmq failover handover -b orders)" in refused.err) == (
        1,
        True,
    )


def test_force_demands_a_confirmation(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.kill("a")
    refused = cometmq("failover", "force", "--member", "b")
    assert (refused.code, "add --yes to confirm" in refused.err) == (2, True)
    assert "a did not answer and may have messages that b lacks" in refused.err
    shown = cometmq("failover", "force", "--member", "b", "--dry-run")
    assert (shown.code, bool(re.search(r"orders +master +a#1 +b#1", shown.out))) == (0, True)
    assert brokers.members["b"].machine.epoch == 1
    forced = cometmq("failover", "force", "--member", "b", "--yes", "--why", "a burnt")
    assert (forced.code, "b is the master of orders." in forced.err) == (0, True)


@pytest.mark.parametrize(("typed", "epoch"), [("orders", 2), ("yes", 1)])
def test_a_person_types_the_name_of_the_set(cometmq: CommandLine, brokers: BrokerSet, typed: str, epoch: int) -> None:
    brokers.kill("a")
    ours, theirs = pty.openpty()
    process = cometmq.start("failover", "force", "-b", "orders", stdin=theirs, stdout=PIPE, stderr=PIPE)
    os.close(theirs)
    os.write(ours, f"{typed}\n".encode())
    _, said = process.communicate(timeout=30)
    os.close(ours)
    assert b"Type the name of the set (orders) to make c its master" in said or b"to make b its master" in said
    assert process.returncode == (0 if epoch == 2 else 1)
    assert max(one.machine.epoch for one in brokers.members.values()) == epoch


def test_the_longest_log_is_the_default(cometmq: CommandLine, brokers: BrokerSet) -> None:
    brokers.members["c"].end += 50
    brokers.members["c"].give(e.LogMoved(e.LogState(150, 150, 1)))
    brokers.kill("a")
    shown = cometmq("failover", "force", "--dry-run")
    assert re.search(r"orders +master +a#1 +c#1", shown.out), shown.out
    other = cometmq("failover", "force", "--dry-run", "--member", "b")
    assert "c has a longer log than b: its last messages will be set aside" in other.err
