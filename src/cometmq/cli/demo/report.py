"""The report of the demo: for the terminal, as text, as JSON and, by :mod:`~.page`, as a page."""

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
from cometmq.cli.demo.lake import Audited
from cometmq.cli.demo.ledger import Rows
from cometmq.cli.demo.stage import Observed, Plan
from cometmq.quantity import quantity

BARS: Final = " ▁▂▃▄▅▆▇█"
SPARK_COLUMNS: Final = 64
TEXT_COLUMNS: Final = 100
PAGES: Final = {"audit.html": "audit of the archive", "replay.html": "replay", "audit-copy.html": "audit of the copy"}
"""The pages that the jobs of Spark have written, and what they are."""
COUNTS: Final = {
    "acknowledged": "Acked",
    "copies": "+ copies",
    "stored": "Stored",
    "consumed": "Consumed",
    "archived": "Archived",
    "replayed": "Replayed",
    "copied": "In copy",
}
"""The counts of a queue, and how they are headed."""


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
        sentence = f"✔ {verdict_of(verdict)}"
        parts.append(Panel(Text(sentence, style="bold green"), box=box.ROUNDED, border_style="green"))
    else:
        text = Text(f"✘ {verdict_of(verdict)}\n" + "\n".join(f"  {line}" for line in verdict.differences))
        text.stylize("bold red")
        parts.append(Panel(text, box=box.ROUNDED, border_style="red"))
    pictures = [] if plot is None else [plot.name]
    pages = ", ".join(("report.html", *PAGES, "report.txt", "report.json", *pictures))
    parts.append(Text(f"In {plan.directory}:\n  {pages}, archive/"))
    return Group(*parts)


def verdict_of(verdict: Comparison) -> str:
    """The verdict in a sentence."""
    if not verdict.agrees:
        return "The counts do not agree:"
    return (
        f"All counts agree: {verdict.total('acknowledged'):,} changes of orders, none lost, none made up, "
        "every order's changes in order; both audits agree."
    )


def save(plan: Plan, seen: Observed, verdict: Comparison, plot: Path | None) -> None:
    """Write report.html, report.txt and report.json."""
    from cometmq.cli.demo.page import write_page

    write_page(plan, seen, verdict, plot)
    with (plan.directory / "report.txt").open("w", encoding="utf-8") as out:
        Console(file=out, width=TEXT_COLUMNS).print(render(plan, seen, verdict, plot))
    told = {
        "agrees": verdict.agrees,
        "differences": verdict.differences,
        "messages": plan.messages,
        "redelivered": verdict.redelivered,
        "retries": seen.retries,
        "seconds": {name: round(seconds, 2) for name, seconds in (seen.seconds | seen.lake.seconds).items()},
        "consumed_by": seen.consumed_by,
        "queues": [{name: getattr(counts, name) for name in ("queue", *COUNTS)} for counts in verdict.queues],
    }
    (plan.directory / "report.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def _counts(verdict: Comparison) -> Table:
    table = Table(
        title="Messages by queue",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_footer=True,
        padding=(0, 1, 0, 0),
    )
    table.add_column("Queue", justify="right", footer="all")
    for name, title in COUNTS.items():
        table.add_column(title, justify="right", footer=f"{verdict.total(name):,}")
    table.add_column("", footer="✔" if verdict.agrees else "✘")
    for counts in verdict.queues:
        mark = Text("✔", style="green") if counts.agrees else Text("✘", style="bold red")
        table.add_row(str(counts.queue), *(f"{getattr(counts, name):,}" for name in COUNTS), mark)
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


def facts(plan: Plan, seen: Observed, verdict: Comparison) -> list[tuple[str, str]]:
    """What happened, step by step."""
    seconds, spark = seen.seconds, seen.lake.seconds
    stream = max(seconds["stream"], 1e-9)
    shares = " + ".join(f"{share:,}" for share in seen.consumed_by)
    megabytes = seen.lake.archive_bytes / 1e6
    return [
        (
            "Produced",
            f"{plan.messages:,} messages by {plan.producers} processes, {plan.messages / stream:,.0f}/s",
        ),
        ("Crash", f"SIGKILL under load; ready again {seen.recovery_seconds:.2f} s after its start"),
        (
            "Repeated",
            f"{seen.retries:,} batches sent again; {verdict.total('copies'):,} records stored twice by that",
        ),
        ("Consumed", f"by {plan.consumers} processes ({shares}); {verdict.redelivered:,} delivered again"),
        (
            "Archived",
            f"{verdict.total('archived'):,} rows of Parquet, {megabytes:,.1f} MB, in {spark['archive']:.1f} s",
        ),
        ("Audited", f"broker, group and archive, in {spark['audit']:.1f} s: {_said(seen.lake.of_archive)}"),
        ("Replayed", f"{quantity(verdict.total('replayed'), 'message')} to another topic, in {spark['replay']:.1f} s"),
        ("Audited", f"that topic, every body compared, in {spark['audit again']:.1f} s: {_said(seen.lake.of_copy)}"),
    ]


def _facts(plan: Plan, seen: Observed, verdict: Comparison) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, fact in facts(plan, seen, verdict):
        table.add_row(Text(f"  {name}", style="bold"), fact)
    return table


def _said(audited: Audited) -> str:
    return "it agrees" if audited.agrees else quantity(len(audited.disagreements), "disagreement")
