"""Rounds of several systems in turn: a line for programs for each measurement, and a Markdown table of medians."""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Figures = dict[str, float]
RUN_TIMEOUT_S = 300.0


def in_turn(sides: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Every side once a round, each of them first in turn, with the number of the round."""
    for number in range(rounds if sides else 0):
        first = number % len(sides)
        for side in (*sides[first:], *sides[:first]):
            yield number + 1, side


def say(**figures: Any) -> None:
    """Print one measurement as a line of JSON."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps(rounded), flush=True)


def said(command: Sequence[str], **environment: Any) -> dict[str, Any]:
    """Run a program; return the last measurement that it printed.

    :raises RuntimeError: it printed none.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S, env=environment or None
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def medians(rounds: Sequence[Mapping[str, Any]]) -> Figures:
    """The median of each figure over rounds that have the same figures."""
    return {
        name: float(statistics.median(one[name] for one in rounds))
        for name, value in rounds[0].items()
        if isinstance(value, int | float)
    }


def percentiles(values_ms: Sequence[float]) -> Figures:
    """Half, 99 of 100, and all of the values are that large at most."""
    ranked = sorted(values_ms)
    count = len(ranked)
    return {"p50_ms": ranked[count // 2], "p99_ms": ranked[count * 99 // 100], "max_ms": ranked[-1]}


def table(*rows: Sequence[str]) -> str:
    """A Markdown table; the first row has the headings."""
    heads, *others = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *others))


def columns(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """A table of medians with a column for each side, and a row for each figure."""
    middle = {side: medians(rounds) for side, rounds in found.items()}
    names = dict.fromkeys(name for figures in middle.values() for name in figures)
    rows = ([name, *(f"{figures[name]:,.2f}" for figures in middle.values())] for name in names)
    return table(["", *middle], *rows)
