"""top: rates and lag of topics, groups and clients, its keys, and a broker that dies while one looks."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator

import pytest
from tests.cli.conftest import CommandLine
from tests.helpers.old_broker import without

from cometmq.cli.admin.top_screen import Keys
from cometmq.client import Admin, Message
from cometmq.client.admin.activity import ActivityWatch
from cometmq.remoting.admin_bodies import TopicStatsTable
from cometmq.remoting.codes import RequestCode
from cometmq.testing import Cluster, ProcessCluster


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(2, data=tmp_path_factory.mktemp("two")) as running:
        yield running


@pytest.fixture(scope="module")
def busy(two: ProcessCluster) -> Iterator[CommandLine]:
    """A cluster with a topic that is written and read, one that is only written, and one that lags."""
    cometmq = CommandLine(two.namesrv_address)
    for topic in ("read", "only-written", "lagging", "silent"):
        cometmq("topic", "create", topic, "--queues", "2")
    cometmq("produce", "lagging", "--count", "10", "--batch", "1")
    cometmq("consume", "lagging", "--group", "slow", "--from-beginning", "--max", "10")  # of both brokers
    cometmq("produce", "lagging", "--count", "90", "--batch", "1")
    running = [
        cometmq.start("bench", "produce", topic, "--into-existing", "--rate", "50", "--duration", "5m", stderr=-3)
        for topic in ("read", "only-written")
    ]
    running.append(cometmq.start("consume", "read", "--group", "quick", stdout=-3))
    yield cometmq
    for process in running:
        process.terminate()
        process.wait(60)


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until


def test_one_look_has_rates_and_lag(busy: CommandLine) -> None:
    def look(*words: str) -> dict[str, dict[str, object]]:
        rows = busy("top", *words, "--once", "--every", "500ms", "-o", "json").json()
        return {next(iter(row.values())): row for row in rows}

    wait_until(lambda: bool(look().get("read", {}).get("in_per_s") or 0))
    topics = look()
    for busy_topic in ("read", "only-written"):
        rate = topics[busy_topic]["in_per_s"]
        assert isinstance(rate, float)
        assert 20 < rate < 100
    assert [*topics][:2] == sorted([*topics][:2], key=lambda name: -float(str(topics[name]["in_per_s"])))
    assert (topics["silent"]["in_per_s"], topics["silent"]["groups"]) == (0.0, 0)
    assert int(str(topics["lagging"]["lag"])) >= 90
    assert next(iter(look("--sort", "lag"))) == "lagging"
    assert [*look("--filter", "ONLY")] == ["only-written"]
    assert len(look("--limit", "2", "--sort", "name")) == 2
    groups = look("groups", "--sort", "lag")
    assert int(str(groups["slow"]["lag"])) >= 90
    assert groups["quick"]["members"] == 1
    clients = look("clients")
    assert {"consumer", "producer"} == {row["kind"] for row in clients.values()}
    assert "quick" in {row["group"] for row in clients.values()}


async def test_the_second_of_two_looks_asks_only_for_topics_that_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """At Apache's broker with ten thousand topics one look of all takes its time; the second asks for the busy ones."""
    async with Cluster() as cluster:
        without(cluster.broker(0), RequestCode.GET_PROGRESS_SUMS)
        await cluster.send(Message("busy", b"1"))
        async with Admin(cluster.namesrv_address) as admin:
            for topic in ("empty", "empty-too"):
                await admin.create_topic(topic)
            asked: list[str] = []
            topic_stats_of = admin.topic_stats_of

            async def noted(topic: str, address: str) -> TopicStatsTable:
                asked.append(topic)
                return await topic_stats_of(topic, address)

            monkeypatch.setattr(admin, "topic_stats_of", noted)
            watch = ActivityWatch(admin, with_clients=False)
            await watch.poll(everything=True)
            assert {"busy", "empty", "empty-too"} <= set(asked)
            asked.clear()
            rows = {row.topic: row for row in (await watch.poll(everything=True)).topics}
            assert asked == ["busy"]
            assert (rows["empty"].in_per_s, rows["busy"].messages) == (0.0, 1)


def test_top_refuses_what_it_cannot_do(busy: CommandLine, offline: CommandLine) -> None:
    assert "top needs a terminal (use --once -o json" in busy("top").err
    assert (
        "clients cannot be sorted by messages; use rate, lag, name" in busy("top", "clients", "--sort", "messages").err
    )
    away = offline("top", "--once")
    assert (away.code, away.err[:38]) == (1, "cometmq: no nameserver at 127.0.0.1:1 ")


def test_a_broker_that_dies_while_one_looks_is_shown_and_the_keys_work(busy: CommandLine, two: ProcessCluster) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 110, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "cometmq", "top", "--every", "300ms", "--timeout", "1"],
        env={**busy.environment, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = ""

    def see(pattern: str) -> None:
        nonlocal said
        said = ""
        until = time.monotonic() + 60
        while not re.search(pattern, said, re.DOTALL):
            assert time.monotonic() < until, said[-2000:]
            said += os.read(ours, 65_536).decode(errors="replace")

    see(r"broker-0 .*in [\d.,]+/s.*broker-1 .*topics by rate.*only-written")
    os.write(ours, b"g")
    see(r"groups by rate.*quick")
    os.write(ours, b"s")
    see(r"groups by lag.*slow")
    os.write(ours, b"t/lag\r")
    see(r"filter 'lag'.*lagging")
    two.kill_broker(1)
    see(r"broker-1 \S+  away: ")
    two.start_broker(1)
    see(r"broker-1 \S+  in ")
    os.write(ours, b"q")
    assert process.wait(60) == 0
    os.close(ours)


def test_keys_of_the_filter() -> None:
    keys = Keys(filter="old")
    for key in "/ab\x7fc":
        keys = keys.press(key)
    assert (keys.filter, keys.typing) == ("ac", True)
    assert keys.press("\r").press("q").quit
    assert keys.press("q").filter == "acq"
    assert keys.press("\x1b") == Keys()
    assert keys.press("\x1b[A"[0]).filter == ""


def test_the_limit_of_a_filter() -> None:
    keys = Keys().press("/")
    for _ in range(1000):
        keys = keys.press("x")
    assert len(keys.filter) == 127
