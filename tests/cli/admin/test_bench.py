"""bench: counts that are checked, topics that are left as they were, and the view of a load."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.cli.conftest import CommandLine

from cometmq.client.sync import SyncProducer
from cometmq.message.message import Message
from cometmq.testing import ProcessCluster


def topics(cometmq: CommandLine) -> set[str]:
    return {row["topic"] for row in cometmq("topic", "list", "-o", "json").json()}


@pytest.mark.parametrize("kind", ["produce", "consume", "roundtrip"])
def test_each_load_counts_its_messages_and_leaves_no_topic(cometmq: CommandLine, kind: str) -> None:
    before = topics(cometmq)
    done = cometmq("bench", kind, "--count", "3000", "--size", "200", "--connections", "2", "-o", "json")
    assert (done.code, done.err) == (0, "")
    result: dict[str, Any] = done.json()
    assert (result["kind"], result["messages"], result["failed"]) == (kind, 3000, 0)
    assert result["messages_per_second"] > 0
    if kind == "produce":
        assert result["stored"] == 3000
    if kind == "roundtrip":
        assert (result["lost"], result["duplicates"], result["foreign"]) == (0, 0, 0)
    if kind != "consume":
        latency = result["latency_ms"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert topics(cometmq) == before


def test_no_load_writes_into_a_topic_that_exists_without_a_word(cometmq: CommandLine) -> None:
    cometmq("topic", "create", "benched", "--queues", "2")
    refused = cometmq("bench", "produce", "benched", "--count", "5")
    assert refused.code == 1
    assert "its consumers would receive the load's messages (omit the topic" in refused.err
    assert cometmq("bench", "roundtrip", "benched", "--count", "5").code == 1
    assert cometmq("bench", "produce", "benched", "--count", "64", "--batch", "10", "--into-existing").code == 0
    stats = cometmq("topic", "stats", "benched", "-o", "json").json()
    assert sum(row["messages"] for row in stats) == 64
    read = cometmq("bench", "consume", "benched", "-o", "json").json()
    assert (read["topic"], read["messages"]) == ("benched", 64)
    assert "benched" in topics(cometmq), "a named topic stays"
    assert "cometmq-bench" not in {row["group"] for row in cometmq("group", "list", "--all", "-o", "json").json()}


def test_messages_of_others_are_no_part_of_a_round_trip(cometmq: CommandLine, cluster: ProcessCluster) -> None:
    cometmq("topic", "create", "shared", "--queues", "1")
    stop = threading.Event()

    def disturb() -> None:
        with SyncProducer("others", cluster.namesrv_address) as producer:
            while not stop.wait(0.002):
                producer.send(Message("shared", b"x"))

    other = threading.Thread(target=disturb)
    other.start()
    try:
        words = ("bench", "roundtrip", "shared", "--into-existing", "--rate", "1000", "--count", "500", "-o", "json")
        done = cometmq(*words)
    finally:
        stop.set()
        other.join()
    assert done.code == 0, done.err
    result = done.json()
    assert (result["messages"], result["lost"]) == (500, 0)
    assert result["foreign"] > 0


def test_a_rate_is_kept(cometmq: CommandLine) -> None:
    done = cometmq("bench", "produce", "--rate", "500", "--duration", "1s", "-o", "json").json()
    assert 400 <= done["messages"] <= 560


def test_an_interrupted_load_leaves_no_topic(cometmq: CommandLine) -> None:
    before = topics(cometmq)
    ours, theirs = pty.openpty()
    process = cometmq.start("bench", "produce", "--duration", "5m", "--rate", "500", stderr=theirs)
    os.close(theirs)
    said = b""
    while not re.search(rb"[1-9]\d* messages .*latency now  p50", said, re.DOTALL):
        said += os.read(ours, 65_536)
    assert topics(cometmq) != before
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    os.close(ours)
    assert topics(cometmq) == before


def test_a_load_that_cannot_be_stored_says_why(tmp_path: Any) -> None:
    with ProcessCluster(data=tmp_path, broker_keys={"brokerPermission": "4"}) as read_only:
        done = CommandLine(read_only.namesrv_address)("bench", "produce", "--count", "1000", "--batch", "1")
    assert done.code == 1
    assert re.search(r"messages were not sent; the first error is:|no route", done.err)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("produce", "--count", "5", "--duration", "5s"), "give only one of --count and --duration"),
        (("roundtrip", "--size", "8"), "--size must be at least 16"),
        (("produce", "a b"), "is not a valid topic name"),
        (("consume", "never-made"), "never-made"),
        (("consume", "never.made"), "never%2Emade"),
        (("roundtrip", "never.made"), "the topic of a queue with this name is never%2Emade"),
        (("produce", "--rate", "0"), "--rate"),
    ],
)
def test_what_bench_refuses(cometmq: CommandLine, words: tuple[str, ...], sentence: str) -> None:
    refused = cometmq("bench", *words)
    assert refused.code in (1, 2)
    assert sentence in refused.err


def test_people_see_rates_percentiles_and_a_histogram(cometmq: CommandLine) -> None:
    shown = cometmq("bench", "produce", "--count", "2000").out
    assert "messages per second" in shown
    assert re.search(r"p50\s+p90\s+p99\s+p99.9", shown)
    assert re.search(r"– +[\d.]+ ms +[\d.]+% [▏▎▍▌▋▊▉█]", shown)


def test_nothing_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "cometmq", "bench", "produce", "-n", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cometmq: no nameserver at 127.0.0.1:1")
