"""The verdict of the demo and its report: for the terminal, as text, JSON, picture and page."""

from __future__ import annotations

import html
import importlib.util
import io
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cometmq.cli.demo.lake import Audited
from cometmq.cli.demo.process import Sent
from cometmq.cli.demo.stage import Observed, Plan
from cometmq.durable import replace_file
from cometmq.quantity import quantity
from cometmq.spark.jobs.report import NO_PLOTS, page, picture

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
    png = _picture(seen) if importlib.util.find_spec("matplotlib") else None
    if png is not None:
        (plan.directory / "demo.png").write_bytes(png)
    files = ("report.html", *PAGES, "report.txt", "report.json", *(() if png is None else ("demo.png",)))
    report = Group(
        _counts(verdict),
        _timeline(seen),
        _facts(plan, seen, verdict),
        _conclusion(verdict),
        Text(f"In {plan.directory}:\n  {', '.join(files)}, archive/"),
    )
    console = Console(file=io.StringIO(), width=TEXT_CHARS, record=True, force_terminal=True)
    console.print(report)
    (plan.directory / "report.txt").write_text(console.export_text(clear=False), encoding="utf-8")
    text = console.export_html(inline_styles=True, code_format="{code}")
    replace_file(plan.directory / "report.html", _page(plan, verdict, text, png))
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
    table = Table(
        title="Messages by queue",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_footer=True,
        padding=(0, 1, 0, 0),
    )
    table.add_column("Queue", justify="right", footer="all")
    for name, (title, _) in COUNTS.items():
        table.add_column(title, justify="right", footer=f"{verdict.total(name):,}")
    table.add_column("", footer="✔" if verdict.agrees else "✘")
    for counts in verdict.queues:
        mark = Text("✔", style="green") if counts.agrees else Text("✘", style="bold red")
        table.add_row(str(counts.queue), *(f"{getattr(counts, name):,}" for name in COUNTS), mark)
    return table


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
    for title, text, style in (
        ("produced", _bars(produced, highest), "cyan"),
        ("consumed", _bars(consumed, highest), "magenta"),
        ("broker", " " * killed + "✖" + "─" * max(0, back - killed - 1) + "▶", "red"),
    ):
        line.append(f"  {title:<9}")
        line.append(text + "\n", style=style)
    line.append("           ✖ killed   ▶ ready again\n", style="dim")
    return line


def _bars(values: NDArray[np.float64], highest: float) -> str:
    """Return a line of bars; every value above zero is visible."""
    return "".join(BARS[step] for step in np.ceil(values / highest * (len(BARS) - 1)).astype(int))


def _facts(plan: Plan, seen: Observed, verdict: Verdict) -> Table:
    seconds, spark = seen.seconds, seen.lake.seconds
    rate = plan.messages / max(seconds["stream"], 1e-9)
    shares = " + ".join(f"{share:,}" for share in seen.consumed_by)
    copies, megabytes = verdict.total("copies"), seen.lake.archive_bytes / 1e6
    replayed = quantity(verdict.total("replayed"), "message")
    facts = (
        ("Produced", f"{plan.messages:,} messages by {plan.producers} processes, {rate:,.0f}/s"),
        ("Crash", f"SIGKILL under load; ready again {seconds['recovery']:.2f} s after its start"),
        ("Repeated", f"{seen.retries:,} batches sent again; {copies:,} records stored twice by that"),
        ("Consumed", f"by {plan.consumers} processes ({shares}); {verdict.redelivered:,} delivered again"),
        ("Archived", f"{verdict.total('archived'):,} rows, {megabytes:,.1f} MB, in {spark['archive']:.1f} s"),
        ("Audited", f"broker, group and archive, in {spark['audit']:.1f} s: {_agreement(seen.lake.of_archive)}"),
        ("Replayed", f"{replayed} to another topic, in {spark['replay']:.1f} s"),
        ("Audited", f"every body of that topic, in {spark['audit again']:.1f} s: {_agreement(seen.lake.of_copy)}"),
    )
    table = Table.grid(padding=(0, 2))
    for name, fact in facts:
        table.add_row(Text(f"  {name}", style="bold"), fact)
    return table


def _agreement(audited: Audited) -> str:
    return "it agrees" if audited.agrees else quantity(len(audited.disagreements), "disagreement")


def _conclusion(verdict: Verdict) -> Panel:
    mark, color = ("✔", "green") if verdict.agrees else ("✘", "red")
    lines = [f"{mark} {verdict.sentence}", *(f"  {line}" for line in verdict.differences)]
    return Panel(Text("\n".join(lines), style=f"bold {color}"), box=box.ROUNDED, border_style=color)


def _picture(seen: Observed) -> bytes:
    """Return the rates over time with the crash, as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    span_s = (seen.samples[-1].at_ms - seen.samples[0].at_ms) / 1000
    middle = (np.arange(PLOT_BINS) + 0.5) * span_s / PLOT_BINS
    produced, consumed = rates(seen, PLOT_BINS)
    killed, back = ((at - seen.samples[0].at_ms) / 1000 for at in (seen.killed_ms, seen.back_ms))
    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(figsize=(10, 3.6), layout="constrained")
        axes.fill_between(middle, produced / 1000, alpha=0.25, color="#0e7490", step="mid")
        axes.step(middle, produced / 1000, where="mid", color="#0e7490", label="acknowledged to producers")
        axes.step(middle, consumed / 1000, where="mid", color="#a21caf", label="delivered to consumers")
        axes.axvspan(killed, back, color="#dc2626", alpha=0.15, label="broker down (SIGKILL)")
        axes.set(xlabel="seconds", ylabel="thousand messages/s", xlim=(0, span_s), ylim=(0, None))
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)
        png = io.BytesIO()
        figure.savefig(png, dpi=130)
        pyplot.close(figure)
    return png.getvalue()


_STYLE: Final = """
.verdict { border-left: .35rem solid var(--good); background: var(--card); padding: .8rem 1rem; margin: 1rem 0 1.5rem }
.verdict.differs { border-color: var(--bad) }
ol.way { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; padding: 0;
  list-style: none }
ol.way li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }
ol.way b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums }
ol.way span, .dim { color: var(--dim); font-size: .9rem }
@media (prefers-color-scheme: dark) { pre span { filter: brightness(1.8) } }
"""
_BODY: Final = """<h1>From producer to archive and back</h1>
<p class="dim">{plan}</p>
<div class="verdict{differs}">{verdict}</div>
<ol class="way">{way}</ol>
<h2>Rates over time</h2>
{picture}
<h2>Report</h2>
<pre>{text}</pre>
<p class="dim">Copies are records that are stored twice: their acknowledgement was lost when the broker was killed, and
the producer sent them again.</p>
<p>Pages of the Spark jobs: {links}</p>
<h2>Read the archive yourself</h2>
<pre>{snippet}</pre>"""
_SNIPPET: Final = """from cometmq.spark import local_session, read_archive

spark = local_session()
orders = read_archive(spark, "{archive}")
orders.groupBy("tags").count().show()
orders.selectExpr("queueId", "queueOffset", "storeTimestamp", "cast(body AS string) AS body").show(5, truncate=False)"""


def _page(plan: Plan, verdict: Verdict, text: str, png: bytes | None) -> bytes:
    way = {caption: verdict.total(name) for name, (_, caption) in COUNTS.items() if caption}
    body = _BODY.format(
        differs="" if verdict.agrees else " differs",
        plan=f"{plan.messages:,} changes of orders, {plan.producers} producers, {plan.consumers} consumers, "
        "one broker killed on the way",
        verdict=f"<b>{'✔' if verdict.agrees else '✘'}</b> {html.escape(verdict.sentence)}"
        + "".join(f"<br>{html.escape(line)}" for line in verdict.differences),
        way="".join(f"<li><b>{count:,}</b><span>{caption}</span></li>" for caption, count in way.items()),
        picture=NO_PLOTS if png is None else picture(png, "Rates over time, with the crash"),
        text=text,
        links=" · ".join(f'<a href="{name}">{html.escape(what)}</a>' for name, what in PAGES.items()),
        snippet=html.escape(_SNIPPET.format(archive=plan.directory / "archive")),
    )
    return page("CometMQ demo", body, _STYLE)
