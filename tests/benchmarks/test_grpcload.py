"""The load generator of gRPC counts what a broker has stored and what was acknowledged, and nothing that went wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.five.grpc import read, report
from benchmarks.grpcload import Requests, figures, grpcload

from cometmq.client.sync import SyncAdmin
from cometmq.testing import ProcessCluster, free_port

GOOD = {"mode": "send", "messages": 3, "failures": 0}
LOAD = Requests("Load", "Receivers", poll_s=5, broker="broker-0")
FEW = ("-c", "2", "-w", "2", "-s", "0.2")


def test_the_figures_are_in_the_last_line() -> None:
    assert figures(f'{{"ready": 8}}\n{json.dumps(GOOD)}\n', "", 0) == GOOD


@pytest.mark.parametrize(
    ("output", "code"),
    [("", 0), ('{"ready": 8}\n', 1), (json.dumps(GOOD), 1), (json.dumps(GOOD | {"failures": 1}), 0)],
)
def test_a_run_that_broke_off_or_had_a_wrong_answer_has_no_figures(output: str, code: int) -> None:
    with pytest.raises(RuntimeError, match="no route"):
        figures(output, "no route", code)


def test_the_table_has_both_systems_and_what_remoting_costs() -> None:
    cost = {"cpu_us": 20.0, "p50_us": 1500.0, "p99_us": 9000.0}
    lines = [
        {"system": "cometmq", "case": "send over remoting, 8 × 8", "per_s": 9000.0, **cost, "cpu_us": 8.0},
        {"system": "apache55", "case": "send, 8 × 8", "per_s": 1000.0, **cost, "cpu_us": 80.0},
        {"system": "cometmq", "case": "send, 8 × 8", "per_s": 2000.0, **cost},
        {"system": "cometmq", "case": "send, 8 × 8", "per_s": 9999.0, **cost},
        {"system": "cometmq", "case": "send, 8 × 8", "per_s": 3000.0, **cost},
        {"system": "cometmq", "clients": 5000, "memory_mb": 100.0, "kb_each": 12.34, "processor": 0.0123},
    ]
    assert [row for row in report(read([json.dumps(line) for line in lines])).splitlines() if row][2:] == [
        "| send over remoting, 8 × 8 | — | 9,000/s | — | — / 8.0 µs | 1.0 × | — / 1.5 ms | — / 9.0 ms |",
        "| send, 8 × 8 | 1,000/s | 3,000/s | 3.00 × | 80.0 / 20.0 µs | 2.5 × | 1.5 / 1.5 ms | 9.0 / 9.0 ms |",
        "| idle clients | system | memory, MB | kB each | of a processor |",
        "| --- | --- | --- | --- | --- |",
        "| 5,000 | cometmq | 100.0 | 12.3 | 1.2% |",
    ]


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, str]]:
    """The ports of an endpoint, and of its nameserver."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    port = free_port("127.0.0.1")
    with ProcessCluster(broker_keys={"grpcServerPort": str(port)}) as cluster:
        with SyncAdmin(cluster.namesrv_address) as admin:
            admin.create_topic("Load")
        yield port, cluster.namesrv_address


def stored(namesrv: str) -> int:
    """Messages of the topic."""
    with SyncAdmin(namesrv) as admin:
        return sum(offset.max_offset for offset in admin.topic_stats("Load").offset_table.values())


@pytest.mark.parametrize("batch", [1, 32])
def test_every_message_that_counts_is_stored(ports: tuple[int, str], batch: int) -> None:
    port, namesrv = ports
    before = stored(namesrv)
    told = grpcload("send", port, replace(LOAD, batch=batch), *FEW)
    assert told["messages"] == stored(namesrv) - before > 0
    assert told["messages"] == told["calls"] * batch


@pytest.mark.parametrize("entries", ["0", "1"])
def test_every_message_is_received_and_acknowledged_once(ports: tuple[int, str], entries: str) -> None:
    port, namesrv = ports
    group = f"Group{entries}"
    sent = grpcload("send", port, replace(LOAD, batch=8), *FEW)["messages"]
    found = stored(namesrv)
    told = grpcload("receive", port, replace(LOAD, group=group), *FEW[:4], "-s", "60", "-m", str(found), "-k", entries)
    assert found >= sent
    assert told["messages"] == told["received"] == found
    again = grpcload("receive", port, replace(LOAD, group=group), *FEW[:4], "-s", "1.5")
    assert (again["messages"], again["received"]) == (0, 0)


def test_calls_begin_on_time(ports: tuple[int, str]) -> None:
    told = grpcload("send", ports[0], LOAD, *FEW[:4], "-r", "100", "-s", "0.5")
    assert told["messages"] == 50


def test_an_answer_that_is_no_success_is_told(ports: tuple[int, str]) -> None:
    with pytest.raises(RuntimeError, match="status 40014"):
        grpcload("send", ports[0], replace(LOAD, topic="Missing-topic"), *FEW)
