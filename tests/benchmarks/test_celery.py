"""The comparison of brokers of Celery: its tables, and how kills are counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("celery", reason="Celery is not installed (--group dev)")

from benchmarks.celery.report import read, report
from tests.interop.celery.diary import Kind, Note
from tests.interop.celery.kills import Killed, judge

RUN = {"tasks": 100, "sent_per_s": 900.0, "send_producer_us": 500.0, "send_broker_us": 40.0, "run_worker_us": 300.0}
TIMES = {"early": 0, "twice": 2, "p50_ms": 3.0, "p99_ms": 40.0, "max_ms": 90.0, "worker_us": 1.0, "broker_us": 2.0}


def line(broker: str, case: str, **more: Any) -> dict[str, Any]:
    return {"round": 1, "broker": broker, "case": case, "others": 0.04, **more}


LINES = [
    {"rounds": 3, "tasks": 100, "before": "others 1.0%, steal 0.0%"},
    {"broker": "cometmq", "version": "CometMQ 1.0", "settings": "`ASYNC_FLUSH`"},
    {"broker": "redis", "version": "Redis 7", "settings": "everysec"},
    *(
        line("cometmq", "run, prefork 1", **RUN, run_per_s=rate, run_broker_us=80.0)
        for rate in (1000.0, 3000.0, 1200.0)
    ),
    line("redis", "run, prefork 1", **RUN, run_per_s=800.0, run_broker_us=50.0),
    line("cometmq", "one task", p50_ms=2.04, p99_ms=9.0),
    line("cometmq", "times", **TIMES, worker_mb=88.0),
    {"broker": "rabbitmq", "missing": "rabbitmq-server is not installed"},
    {"round": 2, "broker": "redis", "broke": "no"},
]


def test_the_tables_have_medians_and_what_went_wrong() -> None:
    text = report(read("\n".join(["noise", *map(json.dumps, LINES)])))
    assert "| CometMQ 1.0 | 1,200 | — | — |" in text
    assert "| Redis 7 | 800 | — | — |" in text
    assert "| CometMQ 1.0 | 900 | 500 | 40 | 2.0 | 9.0 | `ASYNC_FLUSH` |" in text
    assert "| CometMQ 1.0 | 0 | 2 | 3 | 40 | 90 | 1 | 2 | 88 |" in text
    assert "* **rabbitmq** cannot be had here: rabbitmq-server is not installed" in text
    assert "* **redis** broke off in round 2: no" in text
    assert "others 1.0%, steal 0.0%; other processes took at most 4%" in text


def test_tasks_that_kills_interrupt_are_counted() -> None:
    notes = [
        *(Note(Kind.SENT, number, 1, 0.0) for number in (1, 2, 3, 4)),
        Note(Kind.BEGIN, 1, 10, 1.0),
        Note(Kind.END, 1, 10, 1.1),  # and its process is killed before it is acknowledged
        Note(Kind.BEGIN, 2, 10, 1.9),
        Note(Kind.BEGIN, 1, 11, 3.0),
        Note(Kind.END, 1, 11, 3.1),
        Note(Kind.BEGIN, 2, 11, 5.0),
        Note(Kind.END, 2, 11, 5.1),
        Note(Kind.BEGIN, 3, 12, 6.0),
        Note(Kind.END, 3, 12, 6.1),
        Note(Kind.END, 9, 12, 6.5),  # its producer does not know that it was sent
    ]
    result = judge(notes, [Killed("child", 2.0, frozenset({10})), Killed("broker", 4.0, frozenset())])
    assert (result.sent, result.lost, result.twice, result.interrupted) == (4, [4], [1], 1)
    assert result.again_s == {"child": [3.0]}
    assert result.settled_s == pytest.approx(2.5)
    assert result.figures()["again after a child, max s"] == 3.0
