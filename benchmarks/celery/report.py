"""The tables of the comparison, from lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.celery.cases import SHAPES
from benchmarks.rounds import Figures, medians, table
from tests.interop.celery.brokers import BROKERS

Lines = Sequence[dict[str, Any]]


def read(text: str) -> list[dict[str, Any]]:
    """The lines of JSON in the output of earlier runs."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def figures(lines: Lines, broker: str, case: str) -> Figures:
    """The medians of a broker's rounds; nothing if there are none."""
    found = [line for line in lines if line.get("broker") == broker and line.get("case") == case]
    return medians([{**line, "round": 0} for line in found]) if found else {}


def report(lines: Lines) -> str:
    """Markdown: rates, processor time, latency and times, and what went wrong."""
    names = {line["broker"]: line["version"] for line in lines if "version" in line}
    known = {key: names[key] for key in BROKERS if key in names}
    told = {line["broker"]: line["settings"] for line in lines if "settings" in line}

    def row(key: str, case: str, *wanted: tuple[str, str]) -> list[str]:
        one = figures(lines, key, case)
        return [format(one[name], shape) if name in one else "—" for name, shape in wanted]

    def per_shape(name: str, shape: str) -> list[list[str]]:
        return [
            [version, *(row(key, f"run, {one.name}", (name, shape))[0] for one in SHAPES)]
            for key, version in known.items()
        ]

    heads = [one.name for one in SHAPES]
    parts = [table(["tasks run a second", *heads], *per_shape("run_per_s", ",.0f"))]
    parts.append(table(["processor time of the worker for a task, µs", *heads], *per_shape("run_worker_us", ",.0f")))
    parts.append(table(["processor time of the broker for a task, µs", *heads], *per_shape("run_broker_us", ",.0f")))
    first = f"run, {SHAPES[0].name}"
    sends = (("sent_per_s", ",.0f"), ("send_producer_us", ",.0f"), ("send_broker_us", ",.0f"))
    ones = (("p50_ms", ".1f"), ("p99_ms", ".1f"))
    parts.append(
        table(
            ["", "sent a second", "producer, µs", "broker, µs", "one task, p50 ms", "p99 ms", "settings"],
            *([v, *row(k, first, *sends), *row(k, "one task", *ones), told[k]] for k, v in known.items()),
        )
    )
    wanted = (("early", ".0f"), ("twice", ".0f"), ("p50_ms", ".0f"), ("p99_ms", ".0f"), ("max_ms", ".0f"))
    costs = (("worker_us", ",.0f"), ("broker_us", ",.0f"), ("worker_mb", ",.0f"))
    parts.append(
        table(
            [
                "times",
                "early",
                "twice",
                "p50, ms late",
                "p99",
                "max",
                "worker, µs",
                "broker, µs",
                "worker's memory, MB",
            ],
            *([version, *row(key, "times", *wanted, *costs)] for key, version in known.items()),
        )
    )
    parts += [f"* **{line['broker']}** cannot be had here: {line['missing']}" for line in lines if "missing" in line]
    parts += [
        f"* **{line['broker']}** broke off in round {line['round']}: {line['broke']}"
        for line in lines
        if "broke" in line
    ]
    busiest = max((line["others"] for line in lines if "others" in line), default=0.0)
    parts += [
        f"{line['rounds']} rounds, {line['tasks']:,} tasks a case; medians. Before the run {line['before']}; "
        f"other processes took at most {busiest:.0%} of the machine in a case."
        for line in lines
        if "rounds" in line
    ]
    return "\n\n".join(parts)
