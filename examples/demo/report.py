"""The verdict of the demo and its report: for the terminal, as text, JSON, picture and page."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from examples.demo.lake import Audited
from examples.demo.process import Sent
from examples.demo.stage import Observed, Plan
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cometmq.durable import replace_file
from cometmq.quantity import quantity
from cometmq.spark.jobs.report.drawing import figures, png
from cometmq.spark.jobs.report.page import body, page, table, text
from cometmq.spark.jobs.report.parts import Notes
from cometmq.spark.jobs.report.parts import Table as PageTable
from cometmq.spark.jobs.report.plots import Line

BARS: Final = " ▁▂▃▄▅▆▇█"
TIMELINE_CHARS: Final = 64
TEXT_CHARS: Final = 100
PLOT_BINS: Final = 120
PAGES: Final = {"audit.html": "audit of the archive", "replay.html": "replay", "audit-copy.html": "audit of the copy"}
"""The pages of the Spark jobs."""
COUNTS: Final = {
    "acknowledged": ("Acked", "acknowledged to producers"),
    "copies": ("+ copies", ""),
    "stored": ("Stored", "stored by the broker"),
    "consumed": ("Consumed", "consumed by the group"),
    "archived": ("Archived", "archived as Parquet"),
    "replayed": ("Replayed", "replayed from the archive"),
    "copied": ("In copy", "stored in the copy"),
}
"""The counts of a queue: heading of the column, and caption on the page."""


# --- the verdict ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class QueueCounts:
    """The counts of one queue."""

    queue: int
    acknowledged: int
    """Events acknowledged to a producer."""
    copies: int
    """Records stored twice: the acknowledgement was lost, and the producer sent the batch again."""
    stored: int
    """Records in the queue; this count and the next two are the audit's."""
    consumed: int
    archived: int
    replayed: int
    """Records sent from the archive to the same queue of the copy."""
    copied: int
    """Records in that queue, as its audit counts them."""

    @property
    def agrees(self) -> bool:
        """True when all counts agree."""
        counts = {self.stored, self.consumed, self.archived, self.replayed, self.copied}
        return counts == {self.acknowledged + self.copies}


@dataclass(frozen=True)
class Verdict:
    """The comparison of all counts."""

    queues: tuple[QueueCounts, ...]
    redelivered: int
    """Deliveries of records that the group had received before: not yet committed at the crash."""
    differences: tuple[str, ...]
    """Everything that does not agree, a sentence each."""

    @property
    def agrees(self) -> bool:
        """True when nothing is lost, made up or out of order."""
        return not self.differences

    def total(self, name: str) -> int:
        """Return the sum of one count over the queues."""
        return sum(getattr(counts, name) for counts in self.queues)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        if not self.agrees:
            return "The counts do not agree:"
        return (
            f"All counts agree: {self.total('acknowledged'):,} changes of orders, none lost, none made up, "
            "every order's changes in order; both audits agree."
        )


def compare(messages: int, seen: Observed) -> Verdict:
    """Compare what producers and consumers counted with the audits and with the events in the archive.

    :param messages: events that the producers were to send.
    """
    lake = seen.lake
    audited = lake.of_archive
    queues = tuple(
        QueueCounts(
            queue,
            acknowledged=seen.acked.get(queue, Sent()).events,
            copies=audited.archived.get(queue, 0) - lake.events.get(queue, Sent()).events,
            stored=audited.stored.get(queue, 0),
            consumed=audited.consumed.get(queue, 0),
            archived=audited.archived.get(queue, 0),
            replayed=lake.replayed.get(queue, 0),
            copied=lake.of_copy.stored.get(queue, 0),
        )
        for queue in sorted({*seen.acked, *audited.stored, *audited.archived, *lake.events, *lake.of_copy.stored})
    )
    redelivered = sum(seen.consumed_by) - sum(audited.stored.values())
    wrong = {
        "events of the plan were not acknowledged": abs(messages - sum(sent.events for sent in seen.acked.values())),
        "queues have other events in the archive than producers had acknowledged": sum(
            seen.acked.get(counts.queue) != lake.events.get(counts.queue) for counts in queues
        ),
        "queues have counts that differ": sum(not counts.agrees for counts in queues),
        "records were never delivered to a consumer": max(0, -redelivered),
        "changes of orders stand before an earlier change": lake.out_of_order,
        "queues of the replay hold other messages than the archive": len(lake.unlike),
    }
    differences = [f"{count:,} {sentence}" for sentence, count in wrong.items() if count]
    differences += [*audited.disagreements, *lake.of_copy.disagreements]
    return Verdict(queues, redelivered, tuple(differences))


# --- the report ----------------------------------------------------------------------------------
def save(plan: Plan, seen: Observed, verdict: Verdict) -> RenderableType:
    """Write report.html, report.txt, report.json and, with matplotlib, demo.png; return the report for a terminal."""
    files = ["report.html", *PAGES, "report.txt", "report.json"]
    if importlib.util.find_spec("matplotlib"):
        (plan.directory / "demo.png").write_bytes(png(_rates_plot(seen)))
        files.append("demo.png")
    report = Group(
        _counts(verdict),
        _timeline(seen),
        _facts_table(_facts(plan, seen, verdict)),
        _conclusion(verdict),
        Text(f"In {plan.directory}:\n  {', '.join(files)}, archive/"),
    )
    console = Console(file=io.StringIO(), width=TEXT_CHARS, record=True, force_terminal=True)
    console.print(report)
    (plan.directory / "report.txt").write_text(console.export_text(), encoding="utf-8")
    replace_file(plan.directory / "report.html", _page(plan, seen, verdict))
    result = {
        "agrees": verdict.agrees,
        "differences": verdict.differences,
        "messages": plan.messages,
        "redelivered": verdict.redelivered,
        "retries": seen.retries,
        "seconds": {name: round(seconds, 2) for name, seconds in (seen.seconds | seen.lake.seconds).items()},
        "consumed_by": seen.consumed_by,
        "queues": [{name: getattr(counts, name) for name in ("queue", *COUNTS)} for counts in verdict.queues],
    }
    (plan.directory / "report.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return report


def _counts(verdict: Verdict) -> Table:
    counted = Table(
        title="Messages by queue",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_footer=True,
        padding=(0, 1, 0, 0),
    )
    counted.add_column("Queue", justify="right", footer="all")
    for name, (title, _) in COUNTS.items():
        counted.add_column(title, justify="right", footer=f"{verdict.total(name):,}")
    counted.add_column("", footer="✔" if verdict.agrees else "✘")
    for counts in verdict.queues:
        mark = Text("✔", style="green") if counts.agrees else Text("✘", style="bold red")
        counted.add_row(str(counts.queue), *(f"{getattr(counts, name):,}" for name in COUNTS), mark)
    return counted


def rates(seen: Observed, bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return acknowledged and consumed messages a second in ``bins`` equal parts of the time."""
    at, acked, consumed = np.array(seen.samples, np.float64).T
    edges = np.linspace(at[0], at[-1], bins + 1)
    seconds = (at[-1] - at[0]) / 1000 / bins
    return np.diff(np.interp(edges, at, acked)) / seconds, np.diff(np.interp(edges, at, consumed)) / seconds


def _timeline(seen: Observed) -> RenderableType:
    produced, consumed = rates(seen, TIMELINE_CHARS)
    highest = float(max(produced.max(), consumed.max(), 1))
    began_ms = seen.samples[0].at_ms
    span_ms = seen.samples[-1].at_ms - began_ms
    killed, back = (int((at - began_ms) / span_ms * TIMELINE_CHARS) for at in (seen.killed_ms, seen.back_ms))
    line = Text()
    line.append("Timeline", style="bold")
    line.append(f"  {span_ms / 1000:.1f} s, highest bar {highest:,.0f} messages/s\n")
    for title, line_bars, style in (
        ("produced", _bars(produced, highest), "cyan"),
        ("consumed", _bars(consumed, highest), "magenta"),
        ("broker", " " * killed + "✖" + "─" * max(0, back - killed - 1) + "▶", "red"),
    ):
        line.append(f"  {title:<9}")
        line.append(line_bars + "\n", style=style)
    line.append("           ✖ killed   ▶ ready again\n", style="dim")
    return line


def _bars(values: NDArray[np.float64], highest: float) -> str:
    """Return a line of bars; every value above zero is visible."""
    return "".join(BARS[step] for step in np.ceil(values / highest * (len(BARS) - 1)).astype(int))


def _facts(plan: Plan, seen: Observed, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    seconds, spark = seen.seconds, seen.lake.seconds
    rate = plan.messages / max(seconds["stream"], 1e-9)
    shares = " + ".join(f"{share:,}" for share in seen.consumed_by)
    copies, megabytes = verdict.total("copies"), seen.lake.archive_bytes / 1e6
    replayed = quantity(verdict.total("replayed"), "message")
    return (
        ("Produced", f"{plan.messages:,} messages by {plan.producers} processes, {rate:,.0f}/s"),
        ("Crash", f"SIGKILL under load; ready again {seconds['recovery']:.2f} s after its start"),
        ("Repeated", f"{seen.retries:,} batches sent again; {copies:,} records stored twice by that"),
        ("Consumed", f"by {plan.consumers} processes ({shares}); {verdict.redelivered:,} delivered again"),
        ("Archived", f"{verdict.total('archived'):,} rows, {megabytes:,.1f} MB, in {spark['archive']:.1f} s"),
        ("Audited", f"broker, group and archive, in {spark['audit']:.1f} s: {_agreement(seen.lake.of_archive)}"),
        ("Replayed", f"{replayed} to another topic, in {spark['replay']:.1f} s"),
        ("Audited", f"every body of that topic, in {spark['audit again']:.1f} s: {_agreement(seen.lake.of_copy)}"),
    )


def _facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    for name, fact in facts:
        grid.add_row(Text(f"  {name}", style="bold"), fact)
    return grid


def _agreement(audited: Audited) -> str:
    return "it agrees" if audited.agrees else quantity(len(audited.disagreements), "disagreement")


def _conclusion(verdict: Verdict) -> Panel:
    mark, color = ("✔", "green") if verdict.agrees else ("✘", "red")
    lines = [f"{mark} {verdict.sentence}", *(f"  {line}" for line in verdict.differences)]
    return Panel(Text("\n".join(lines), style=f"bold {color}"), box=box.ROUNDED, border_style=color)


def _rates_plot(seen: Observed) -> Line:
    """The rates over time with the crash."""
    span_s = (seen.samples[-1].at_ms - seen.samples[0].at_ms) / 1000
    produced, consumed = (of / 1000 for of in rates(seen, PLOT_BINS))
    killed, back = ((at - seen.samples[0].at_ms) / 1000 for at in (seen.killed_ms, seen.back_ms))
    return Line(
        "Rates over time",
        "thousand messages/s",
        "seconds",
        ((np.arange(PLOT_BINS) + 0.5) * span_s / PLOT_BINS).tolist(),
        {"acknowledged to producers": produced.tolist(), "delivered to consumers": consumed.tolist()},
        ("broker down (SIGKILL)", killed, back),
    )


_SNIPPET: Final = """from cometmq.spark import local_session, read_archive

spark = local_session()
orders = read_archive(spark, "{archive}")
orders.groupBy("tags").count().show()
orders.selectExpr("queueId", "queueOffset", "storeTimestamp", "cast(body AS string) AS body").show(5, truncate=False)"""


def _page(plan: Plan, seen: Observed, verdict: Verdict) -> bytes:
    title = "From producer to archive and back"
    header = (
        f"{plan.messages:,} changes of orders, {plan.producers} producers, {plan.consumers} consumers, "
        "one broker killed on the way"
    )
    links = " · ".join(f'<a href="{name}">{text(what)}</a>' for name, what in PAGES.items())
    above = body(
        title=title,
        header=header,
        verdict=verdict.sentence,
        is_good=verdict.agrees,
        figures=[(f"{verdict.total(name):,}", caption) for name, (_, caption) in COUNTS.items() if caption],
        parts=[Notes(verdict.differences, urgent=True)] if verdict.differences else [],
        plots=figures([_rates_plot(seen)]),
    )
    counts = PageTable(
        (">Queue", *(f">{head}" for head, _ in COUNTS.values()), "<"),
        [(str(of.queue), *(getattr(of, name) for name in COUNTS), "✔" if of.agrees else "✘") for of in verdict.queues],
        "Messages by queue",
    )
    foot = ("all", *(verdict.total(name) for name in COUNTS), "✔" if verdict.agrees else "✘")
    facts = PageTable(("<Step", "<What happened"), list(_facts(plan, seen, verdict)), "Step by step")
    snippet = _SNIPPET.format(archive=plan.directory / "archive")
    below = (
        table(counts, foot),
        '<p class="dim">Copies are records that are stored twice: their acknowledgement was lost when the broker was '
        "killed, and the producer sent them again.</p>",
        table(facts),
        f"<p>Pages of the Spark jobs: {links}</p>",
        f'<h2>Read the archive yourself</h2>\n<code class="code" tabindex="0">{text(snippet)}</code>',
    )
    return page("CometMQ demo", "\n".join((above, *below)))
