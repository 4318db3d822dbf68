"""The report of the demo: for the terminal, as text, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cometmq.cli.demo.compare import Comparison
from cometmq.cli.demo.ledger import Rows
from cometmq.cli.demo.stage import Observed, Plan

BARS: Final = " ▁▂▃▄▅▆▇█"
SPARK_COLUMNS: Final = 64
TEXT_COLUMNS: Final = 100

_COLUMNS: Final = ("acknowledged", "copies", "stored", "consumed", "archived")


def rate_over_time(rows: Rows, began_ms: int, ended_ms: int, bins: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Messages a second in each of `bins` equal spans of time."""
    counts, _ = np.histogram(rows["at_ms"], bins=bins, range=(began_ms, ended_ms))
    return counts / ((ended_ms - began_ms) / 1000 / bins)


def sparkline(rates: np.ndarray[Any, np.dtype[np.float64]], highest: float) -> str:
    """A line of bars; anything above nothing shows."""
    steps = np.ceil(rates / max(highest, 1) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[step] for step in steps)


def ended_ms(seen: Observed) -> int:
    """When the last message was consumed, or acknowledged."""
    return int(max(seen.acked["at_ms"].max(), seen.consumed["at_ms"].max())) + 1


def render(plan: Plan, seen: Observed, verdict: Comparison, plot: Path | None) -> RenderableType:
    """Everything a person wants to know, in one piece."""
    parts: list[RenderableType] = [_counts(verdict), _timeline(seen), _facts(plan, seen, verdict)]
    if verdict.agrees:
        sentence = (
            f"✔ All counts agree: {verdict.total('acknowledged'):,} changes of orders, none lost, none made up, "
            "every order's changes in order."
        )
        parts.append(Panel(Text(sentence, style="bold green"), box=box.ROUNDED, border_style="green"))
    else:
        text = Text("✘ The counts do not agree:\n" + "\n".join(f"  {line}" for line in verdict.differences))
        text.stylize("bold red")
        parts.append(Panel(text, box=box.ROUNDED, border_style="red"))
    parts.append(Text(f"In {plan.directory}: report.txt, report.json, archive/" + (f", {plot.name}" if plot else "")))
    return Group(*parts)


def save(plan: Plan, seen: Observed, verdict: Comparison, plot: Path | None) -> None:
    """Write report.txt and report.json."""
    with (plan.directory / "report.txt").open("w", encoding="utf-8") as out:
        Console(file=out, width=TEXT_COLUMNS).print(render(plan, seen, verdict, plot))
    facts = {
        "agrees": verdict.agrees,
        "differences": verdict.differences,
        "messages": plan.messages,
        "redelivered": verdict.redelivered,
        "retries": seen.retries,
        "seconds": {name: round(seconds, 2) for name, seconds in seen.seconds.items()},
        "consumed_by": seen.consumed_by,
        "queues": [{name: getattr(counts, name) for name in ("queue", *_COLUMNS)} for counts in verdict.queues],
    }
    (plan.directory / "report.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _counts(verdict: Comparison) -> Table:
    table = Table(
        title="Messages by queue", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_footer=True
    )
    table.add_column("Queue", justify="right", footer="all")
    for name, title in zip(_COLUMNS, ("Acknowledged", "+ copies", "Stored", "Consumed", "Archived"), strict=True):
        table.add_column(title, justify="right", footer=f"{verdict.total(name):,}")
    table.add_column("", footer="✔" if verdict.agrees else "✘")
    for counts in verdict.queues:
        mark = Text("✔", style="green") if counts.agrees else Text("✘", style="bold red")
        table.add_row(str(counts.queue), *(f"{getattr(counts, name):,}" for name in _COLUMNS), mark)
    return table


def _timeline(seen: Observed) -> RenderableType:
    end = ended_ms(seen)
    produced = rate_over_time(seen.acked, seen.began_ms, end, SPARK_COLUMNS)
    consumed = rate_over_time(seen.consumed, seen.began_ms, end, SPARK_COLUMNS)
    highest = float(max(produced.max(), consumed.max()))
    span = end - seen.began_ms
    killed, back = (int((at - seen.began_ms) / span * SPARK_COLUMNS) for at in (seen.killed_ms, seen.back_ms))
    down = " " * killed + "✖" + "─" * max(0, back - killed - 1) + "▶"
    line = Text()
    line.append("Timeline", style="bold")
    line.append(f"  {span / 1000:.1f} s, highest bar {highest:,.0f} messages/s\n")
    for title, text, style in (
        ("produced", sparkline(produced, highest), "cyan"),
        ("consumed", sparkline(consumed, highest), "magenta"),
        ("broker", down, "red"),
    ):
        line.append(f"  {title:<9}")
        line.append(text + "\n", style=style)
    line.append("           ✖ killed   ▶ ready again\n", style="dim")
    return line


def _facts(plan: Plan, seen: Observed, verdict: Comparison) -> Table:
    table = Table.grid(padding=(0, 2))
    seconds = seen.seconds
    stream = max(seconds["stream"], 1e-9)
    rows = verdict.total("archived")
    shares = " + ".join(f"{share:,}" for share in seen.consumed_by)
    for name, fact in (
        ("Produced", f"{plan.messages:,} messages by {plan.producers} processes, {plan.messages / stream:,.0f}/s"),
        ("Crash", f"SIGKILL under load; ready again {seen.recovery_seconds:.2f} s after its start"),
        ("Repeated", f"{seen.retries:,} batches sent again; {verdict.total('copies'):,} records stored twice by that"),
        ("Consumed", f"by {plan.consumers} processes ({shares}); {verdict.redelivered:,} delivered again"),
        ("Archived", f"{rows:,} rows of Parquet, {seen.archive['bytes'] / 1e6:,.1f} MB, in {seconds['archive']:.1f} s"),
    ):
        table.add_row(Text(f"  {name}", style="bold"), fact)
    return table
