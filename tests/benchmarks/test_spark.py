"""The report of benchmarks/spark about its runs, and its meter of processor time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (pip install cometmq[spark])")

from benchmarks.spark.__main__ import KAFKA, LIMIT, OURS, Results

BURN = "while __import__('time').process_time() < 0.3: pass"
ORPHAN = f"__import__('subprocess').Popen([__import__('sys').executable, '-c', {BURN!r}])"
UNWAITED = f"""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if not os.fork():
    {BURN}
    time.sleep(1)
    os._exit(0)
time.sleep(2)
"""
METER = f"""
import json, subprocess, sys, time
from benchmarks.spark.cpu_meter import CpuMeter
from tests.helpers.waiting import block_for
meter = CpuMeter()
broker = subprocess.Popen([sys.executable, "-c", {BURN!r} + "\\ninput()"], stdin=subprocess.PIPE)
meter.brokers[broker.pid] = "CometMQ"
before = meter.seconds()["Python"]
for code in ({BURN!r}, {ORPHAN!r}):
    subprocess.run([sys.executable, "-c", code], check=True)
most, deadline = before, time.monotonic() + 60
while (most < before + 0.4 or meter.seconds()["CometMQ"] < 0.2) and time.monotonic() < deadline:
    now = meter.seconds()["Python"]
    assert now >= most, (most, now)
    most = now
    block_for(0.02)
block_for(0.1)
unwaited = subprocess.Popen([sys.executable, "-c", {UNWAITED!r}])
most, ended = meter.seconds()["Python"], False
while not ended:
    ended = unwaited.poll() is not None
    now = meter.seconds()["Python"]
    assert now >= most, (most, now)
    most = now
print(json.dumps(meter.seconds() | {{"before": before}}))
broker.communicate(b"\\n")
"""


def test_time_of_processes_counts_by_kind_and_after_they_and_their_parents_have_ended() -> None:
    done = subprocess.run([sys.executable, "-c", METER], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["CometMQ"] >= 0.2
    assert found["Python"] - found["before"] >= 0.4 + 0.2


def run_of(case: str, side: str, round_: int, seconds: float, **more: object) -> dict[str, object]:
    cpu = {"JVM": seconds, "Python": seconds / 2, side: seconds / 4}
    names = {"case": case, "session": "plain", "side": side, "round": round_}
    return {**names, "seconds": seconds, "cpu_seconds": cpu, "rows": 500_000, "others": 0.0, "steal": 0.0, **more}


def test_a_row_has_the_medians_of_its_rounds_and_none_of_the_warm_one() -> None:
    results = Results()
    for number, seconds in enumerate((99.0, 1.0, 4.0, 2.0)):
        results.add(run_of("parquet", KAFKA, number, seconds))
        results.add(run_of("archive", OURS, number, seconds / 2))
        results.add(run_of("parquet", OURS, number, seconds * 2))
        results.add(run_of("parquet", LIMIT, number, seconds * 1.6))
    lines = list(results.table(["plain", "tuned"]))
    assert lines[2:] == [
        "| stream to Spark's Parquet sink, plain | 250 k rows/s | 125 k rows/s | 0.50 × | 0.80 of 156 k rows/s "
        "| 7.0 s / 14.0 s | 4.0 + 2.0 + 1.0 / 8.0 + 4.0 + 2.0 |",
        "| archive from a broker, plain | 250 k rows/s | 500 k rows/s | 2.00 × | – | 7.0 s / 3.5 s "
        "| 4.0 + 2.0 + 1.0 / 2.0 + 1.0 + 0.5 |",
    ]
