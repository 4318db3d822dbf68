"""The report of the demo as one HTML page, which needs nothing beside it but the pages that it links."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cometmq.cli.demo.compare import Comparison, QueueCounts
from cometmq.cli.demo.report import COUNTS, PAGES, facts, verdict_of
from cometmq.cli.demo.stage import Observed, Plan
from cometmq.cli.page_style import NO_PLOTS, page, picture
from cometmq.durable import replace_file

_WAY: Final = {
    "acknowledged": "acknowledged to producers",
    "stored": "stored by the broker",
    "consumed": "consumed by the group",
    "archived": "archived as Parquet",
    "replayed": "replayed from the archive",
    "copied": "stored in the copy",
}
_STYLE: Final = """
.verdict { border-left: .35rem solid var(--good); background: var(--card); padding: .8rem 1rem; margin: 1rem 0 1.5rem }
.verdict.differs { border-color: var(--bad) } .verdict ul { margin: .4rem 0 0 }
ol.way { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; padding: 0;
  list-style: none }
ol.way li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }
ol.way b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums }
ol.way span, .dim { color: var(--dim); font-size: .9rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 0 }
dt { font-weight: 600 } dd { margin: 0 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }
th { white-space: nowrap } tfoot td { font-weight: 600 }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr } dd { margin-bottom: .5rem } }
"""
_BODY: Final = """<h1>From producer to archive and back</h1>
<p class="dim">{plan}</p>
<div class="verdict{differs}">{verdict}</div>
<ol class="way">{way}</ol>
<h2>What happened</h2>
<dl>{facts}</dl>
<h2>What Spark found</h2>
<p>{links}</p>
{picture}
<h2>Messages by queue</h2>
<div class="wide"><table><thead><tr><th>Queue</th>{heads}<th></th></tr></thead>
<tbody>{rows}</tbody>
<tfoot><tr><td>all</td>{totals}{mark}</tr></tfoot></table></div>
<p class="dim">Copies are records that stand twice since their acknowledgement got lost when the broker was killed, and
the producer sent them again.</p>
<h2>Look for yourself</h2>
<pre>{snippet}</pre>"""
_ALT: Final = "Rates, counts by queue, and the steps of Spark"
_SNIPPET: Final = """from cometmq.spark.archive_reader import read_archive
from cometmq.spark.environment import local_session

spark = local_session()
orders = read_archive(spark, "{archive}")
orders.groupBy("tags").count().show()
orders.selectExpr("queueId", "queueOffset", "storeTimestamp", "cast(body AS string) AS body").show(5, truncate=False)"""


def write_page(plan: Plan, seen: Observed, verdict: Comparison, plot: Path | None) -> None:
    """Write report.html; the picture `plot` becomes part of it."""
    body = _BODY.format(
        differs="" if verdict.agrees else " differs",
        plan=f"{plan.messages:,} changes of orders, {plan.producers} producers, {plan.consumers} consumers, "
        "one broker killed on the way",
        verdict=_verdict(verdict),
        way="".join(f"<li><b>{verdict.total(name):,}</b><span>{what}</span></li>" for name, what in _WAY.items()),
        facts="".join(f"<dt>{name}</dt><dd>{html.escape(fact)}</dd>" for name, fact in facts(plan, seen, verdict)),
        links=" · ".join(f'<a href="{name}">{html.escape(what)}</a>' for name, what in PAGES.items()),
        picture=NO_PLOTS if plot is None else picture(plot.read_bytes(), _ALT),
        heads="".join(f"<th>{title}</th>" for title in COUNTS.values()),
        rows="".join(map(_row, verdict.queues)),
        totals=_cells(verdict.total(name) for name in COUNTS),
        mark=_mark(verdict.agrees),
        snippet=html.escape(_SNIPPET.format(archive=plan.directory / "archive")),
    )
    replace_file(plan.directory / "report.html", page("CometMQ demo", body, _STYLE))


def _verdict(verdict: Comparison) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in verdict.differences)
    return f"<b>{'✔' if verdict.agrees else '✘'}</b> {html.escape(verdict_of(verdict))}" + (
        f"<ul>{items}</ul>" if items else ""
    )


def _row(counts: QueueCounts) -> str:
    return f"<tr><td>{counts.queue}</td>{_cells(getattr(counts, name) for name in COUNTS)}{_mark(counts.agrees)}</tr>"


def _cells(numbers: Iterable[int]) -> str:
    return "".join(f"<td>{number:,}</td>" for number in numbers)


def _mark(good: bool) -> str:
    return '<td class="good">✔</td>' if good else '<td class="bad">✘</td>'
