"""Measures transactions beside Apache RocketMQ 4.9.7, in turn, on this machine, with `mqload transact`.

    python benchmarks/transactions.py [--rounds 5] [--seconds 5]

One transaction is a half message that is answered, then its commit that is answered: as many a second as
producers can do one after the other. Each system runs alone, fresh; the JVM is warmed for 20 s. Prints one
JSON line a figure and a table of medians, with the processor time of the broker's process for a transaction. A machine
that is busy with other things gives noise: compare the ratios, and processor time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.broker import JAVA_WARM_SECONDS, SETTLE_SECONDS, mqload, running  # noqa: E402
from benchmarks.process_cost import cpu_seconds  # noqa: E402
from tests.interop.systems import BOTH, Server, System  # noqa: E402

CASES = {
    "32 producers, 128 B": ("-c", "32", "-t", "Tx"),
    "1 producer, 128 B": ("-c", "1", "-t", "Tx"),
    "32 producers x 8 in flight, 1 KB": ("-c", "32", "-w", "8", "-b", "1024", "-t", "Tx"),
}

FIGURES = ("per_s", "p50_us", "p99_us", "cpu_us")


def measure(system: System, seconds: float) -> dict[str, dict[str, Any]]:
    """All cases on one broker."""
    directory = Path(tempfile.mkdtemp(prefix="cometmq-bench-"))
    try:
        with running(system, "ASYNC_FLUSH", directory) as broker:
            if system is System.APACHE:
                mqload("transact", broker.port, "-c", "32", "-t", "Warm", "-s", str(JAVA_WARM_SECONDS))
            return {name: measure_case(broker, options, seconds) for name, options in CASES.items()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure_case(broker: Server, options: Sequence[str], seconds: float) -> dict[str, Any]:
    """One case, with the processor time of the broker for a transaction in µs (``cpu_us``)."""
    before = sum(cpu_seconds(broker.pid))
    result = mqload("transact", broker.port, *options, "-s", str(seconds))
    time.sleep(SETTLE_SECONDS)
    result["cpu_us"] = round((sum(cpu_seconds(broker.pid)) - before) / result["messages"] * 1e6, 1)
    return result


def main() -> None:
    """Both systems in turn, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each case")
    options = parser.parse_args()
    figures: dict[tuple[str, System], list[dict[str, Any]]] = {}
    for number in range(options.rounds):
        for system in (System.APACHE, System.COMETMQ) if number % 2 else (System.COMETMQ, System.APACHE):
            for name, result in measure(system, options.seconds).items():
                figures.setdefault((name, system), []).append(result)
                line = {"round": number + 1, "system": system.value, "case": name}
                print(json.dumps(line | {key: result[key] for key in FIGURES}), flush=True)
    print("\n| case | Apache | CometMQ | ratio | p99 Apache | p99 CometMQ | CPU, Apache / CometMQ |")
    print("|---|---|---|---|---|---|---|")
    for name in CASES:
        rate, p99, cpu = (
            {system: statistics.median(result[key] for result in figures[name, system]) for system in BOTH}
            for key in ("per_s", "p99_us", "cpu_us")
        )
        print(
            f"| {name} | {rate[System.APACHE]:,.0f}/s | {rate[System.COMETMQ]:,.0f}/s "
            f"| {rate[System.COMETMQ] / rate[System.APACHE]:.2f} × "
            f"| {p99[System.APACHE]:,.0f} µs | {p99[System.COMETMQ]:,.0f} µs "
            f"| {cpu[System.APACHE]:,.0f} / {cpu[System.COMETMQ]:,.0f} µs |"
        )


if __name__ == "__main__":
    main()
