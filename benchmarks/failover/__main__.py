"""Measures sets that elect their master: ours with etcd, and Apache RocketMQ 5.5.0 with its controller.

    python -m benchmarks.failover times  [--runs 50] [--apache 5] [--only kill]   time without a master
    python -m benchmarks.failover times  --only java [--runs 5]                   the same for a Java producer
    python -m benchmarks.failover load   [--rounds 3] [--seconds 4] [--only set]  sends, processor time and memory

All processes run on this machine, each set with two replicas, and a message is acknowledged when both have it.
`times` sends a message each 10 ms to the master that the nameserver names (`prober.py`). It prints a line for each
run and a table of medians and worst runs:

* kill: SIGKILL of the master, until another master has acknowledged a send
* cut: SIGSTOP of the master, in place of a machine that is cut off; the same
* stop: SIGTERM of the master; the longest time between two acknowledged sends
* java: SIGKILL, until a Java producer with its defaults has sent again; it asks for routes each 30 s
* elect: `mqadmin electMaster` names the other member; the longest time between two acknowledged sends

`load` sends with 64 connections (`mqload`) to Apache's set, to a set of ours with two members and with three, and to a
SYNC_MASTER with a slave, which has no failover. The JVM is warmed by 150,000 messages.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.failover.java_sender import sending
from benchmarks.failover.loads import Side, load
from benchmarks.failover.prober import Prober, probing
from benchmarks.failover.sets import TOPIC, ReplicaSet, replica_set, start_again
from benchmarks.mqload import mqload
from benchmarks.rounds import say, table
from tests.helpers.waiting import wait_for
from tests.interop.systems import Server, System

CASES: Final = ("kill", "cut", "stop", "elect", "java")
SIDES: Final = (System.APACHE55, System.COMETMQ)
WARM_S: Final = 10
PATIENCE_S: Final = 120.0
SETTLE_S: Final = 1.0
"""Sends go on for so long before a failure and after the first acknowledgement that follows it."""
Times = dict[tuple[str, System], list[float]]


def times(cases: Sequence[str], runs: dict[System, int]) -> None:
    """All cases of one system after the other, then the table."""
    found: Times = {}
    for system in SIDES:
        if not runs[system]:
            continue
        with replica_set(system) as group:
            mqload("send", group.master().port, "-c", "64", "-t", "Warm", "-s", str(WARM_S))
            for case in cases:
                for run in range(runs[system]):
                    found.setdefault((case, system), []).append(_fail_over(group, system, case, run + 1))
    print(table(("case", "system", "runs", "median", "worst"), *(_row(*key, all_s) for key, all_s in found.items())))


def _row(case: str, system: System, all_s: Sequence[float]) -> list[str]:
    name = "CometMQ" if system is System.COMETMQ else "Apache 5.5.0"
    return [case, name, str(len(all_s)), f"{statistics.median(all_s):.2f} s", f"{max(all_s):.2f} s"]


def _fail_over(group: ReplicaSet, system: System, case: str, run: int) -> float:
    """One failover; return its seconds, and leave all members in sync."""
    group.wait_until_in_sync()
    master = group.master()
    seconds = _java_seconds(group, master) if case == "java" else _seconds(group, master, case)
    say(system=system.value, case=case, run=run, **seconds)
    _heal(group, master, case)
    return seconds["gap_s" if case in ("stop", "elect") else "first_s"]


def _seconds(group: ReplicaSet, master: Server, case: str) -> dict[str, float]:
    """Until another master acknowledges, and the longest time without an acknowledgement."""
    with probing(group.namesrv.address, TOPIC) as prober:
        time.sleep(SETTLE_S)
        since = time.monotonic()
        ending = _trigger(group, master, case)
        first = _first(prober, since, master)
        ending.join()
        time.sleep(SETTLE_S)
        return {"first_s": first, "gap_s": prober.longest_gap_s(since), "failed": prober.failed(since)}


def _java_seconds(group: ReplicaSet, master: Server) -> dict[str, float]:
    with sending(group.namesrv.address, TOPIC) as sender:
        time.sleep(SETTLE_S)
        since_ms = time.time_ns() // 1_000_000
        master.kill()
        wait_for(lambda: sender.seconds_to_first(since_ms), "the Java producer sends again", PATIENCE_S)
        return {"first_s": sender.seconds_to_first(since_ms) or 0.0}


def _trigger(group: ReplicaSet, master: Server, case: str) -> threading.Thread:
    """Begin the failure; return a thread that ends when the old master has done its part."""
    if case == "cut":
        os.kill(master.pid, signal.SIGSTOP)
    ends = {"kill": master.kill, "cut": lambda: None, "stop": master.stop, "elect": group.hand_over}[case]
    thread = threading.Thread(target=ends)
    thread.start()
    return thread


def _first(prober: Prober, since: float, master: Server) -> float:
    wait_for(lambda: prober.seconds_to_first(since, master.address), "another master serves", PATIENCE_S)
    first = prober.seconds_to_first(since, master.address)
    assert first is not None
    return first


def _heal(group: ReplicaSet, old_master: Server, case: str) -> None:
    if case == "cut":
        os.kill(old_master.pid, signal.SIGCONT)
    elif case != "elect":
        start_again(group, old_master)
    begun = time.monotonic()
    group.wait_until_in_sync()
    say(back_in_sync_s=time.monotonic() - begun)


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("times", "load"))
    parser.add_argument("--runs", type=int, default=50, help="of each case, of CometMQ")
    parser.add_argument("--apache", type=int, default=5, help="runs of each case, of Apache")
    parser.add_argument("--only", default="", help="cases or sides whose name contains this")
    parser.add_argument("--rounds", type=int, default=3, help="of each load")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    options = parser.parse_args()
    if options.what == "times":
        cases = [case for case in CASES if (options.only in case if options.only else case != "java")]
        times(cases, {System.COMETMQ: options.runs, System.APACHE55: options.apache})
    else:
        load([side for side in Side if options.only in side.name.lower()], options.rounds, options.seconds)


if __name__ == "__main__":
    main()
