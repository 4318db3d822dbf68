"""Measures the same work on CometMQ, Apache RocketMQ, Kafka, NATS JetStream, Redis Streams and RabbitMQ, in turn.

    python -m benchmarks.peers [--rounds 2] [--seconds 3] [--warm 20] [--only NATS]
    python -m benchmarks.peers --page docs/performance.md    also writes its tables and the picture beside it
    python -m benchmarks.peers --read LINES    the tables of lines that earlier runs printed

Messages of 128 B and 1 KB are sent with 64 connections x 1 in flight, with 16 connections x 32 in flight, and, where a
system has these, with 16 connections that send batches of 32. Then one group reads what the second of them has stored.
The generators are programs in C of one thread: `mqload` for RocketMQ and CometMQ, `peerload` for others. Each system
runs alone, fresh, with one node and one replica. Processor time is that of the server, all threads and children. The
messages that a server has are counted and compared with those that it has acknowledged. A system that cannot be had
here is named with the reason. Prints a line of JSON for each case, and tables.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, look_before, verdict
from benchmarks.peers.load import CASES, Case, Family, measure
from benchmarks.peers.report import paged, picture, read, report
from benchmarks.peers.systems import PEERS, Peer, Started
from benchmarks.rounds import in_turn, say
from tests.interop.builds import ToolMissingError

PICTURE: Final = "peers.svg"
"""Beside the page."""


def one_round(peer: Peer, cases: Sequence[Case], seconds: float, warm_s: float) -> Iterator[dict[str, Any]]:
    """All cases on a fresh server: the sends, a count of what it has, then the reads."""
    cases = [case for case in cases if peer.batches or not case.batched]
    with peer.start() as started:
        empty = Family(started.pid).memory_mb()
        if peer.java and warm_s:
            _warm(peer, started, cases, warm_s)
        sends, reads = ([case for case in cases if case.reads is wanted] for wanted in (False, True))
        found = []
        for case in sends:
            started.make(case.topic)
            found.append(measure(peer, started, case, seconds))
        stored = dict(zip((case.topic for case in sends), started.counts([case.topic for case in sends]), strict=True))
        for case, figures in zip(sends, found, strict=True):
            yield _named(peer, case) | figures | {"stored": stored[case.topic]}
        for case in reads:
            started.group(case.topic)
            yield _named(peer, case) | measure(peer, started, case, seconds, stored[case.topic])
        after = Family(started.pid).memory_mb()
        yield {"peer": peer.key, "memory": "empty", **empty}
        yield {"peer": peer.key, "memory": "after", **after}


def _named(peer: Peer, case: Case) -> dict[str, Any]:
    return {"peer": peer.key, "case": case.name}


def _warm(peer: Peer, started: Started, cases: Sequence[Case], warm_s: float) -> None:
    """Let a JVM compile what the cases need."""
    sends = [case for case in cases if not case.reads and case.body == cases[0].body]
    for case in sends:
        started.make(case.warming().topic)
        measure(peer, started, case.warming(), warm_s / len(sends))
    for case in (case for case in cases if case.reads and case.body == cases[0].body):
        warming = case.warming()
        started.group(warming.topic)
        measure(peer, started, warming, warm_s, started.counts([warming.topic])[0])


def compare(peers: Sequence[Peer], rounds: int, seconds: float, warm_s: float) -> list[dict[str, Any]]:
    """All peers in turn; prints and returns the lines."""
    lines: list[dict[str, Any]] = []

    def tell(**line: Any) -> None:
        say(**line)
        lines.append(line)

    load_before, before = os.getloadavg()[0], look_before()
    there = []
    for peer in peers:
        try:
            tell(peer=peer.key, version=peer.version())
            there.append(peer)
        except (ToolMissingError, OSError, RuntimeError) as problem:
            tell(peer=peer.key, missing=str(problem))
    for number, peer in in_turn(there, rounds):
        try:
            for line in one_round(peer, CASES, seconds, warm_s):
                tell(round=number, **line)
        except (ToolMissingError, OSError, RuntimeError, TimeoutError) as problem:
            tell(round=number, peer=peer.key, broke=str(problem)[-500:])
    during = [Beside(line["others"], line["steal"]) for line in lines if "others" in line]
    if during:
        tell(rounds=rounds, seconds=seconds, verdict=verdict(load_before, before, during))
    return lines


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each send")
    parser.add_argument("--warm", type=float, default=20.0, help="seconds for a JVM before its cases")
    parser.add_argument(
        "--only", nargs="+", metavar="PEER", help="systems whose key or name contains one of these words"
    )
    parser.add_argument("--page", type=Path, help="the page whose tables are written, with the picture beside it")
    parser.add_argument("--read", type=Path, help="lines of JSON of earlier runs, instead of a run")
    given = parser.parse_args()
    if given.read:
        lines = read(given.read.read_text(encoding="utf-8"))
    else:
        words = [word.lower() for word in given.only or [""]]
        chosen = [peer for peer in PEERS if any(word in f"{peer.key} {peer.name}".lower() for word in words)]
        if not chosen:
            sys.exit(f"no system is named {' or '.join(words)}: {', '.join(peer.key for peer in PEERS)}")
        lines = compare(chosen, given.rounds, given.seconds, given.warm)
    print(f"\n{report(lines)}")
    if given.page:
        text = given.page.read_text(encoding="utf-8")
        given.page.write_text(paged(text, report(lines)), encoding="utf-8")
        given.page.with_name(PICTURE).write_text(picture(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
