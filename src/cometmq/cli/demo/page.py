"""The report of the demo as one HTML page, which needs nothing beside it but the pages that it links."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cometmq.cli.demo.compare import Comparison, QueueCounts
from cometmq.cli.demo.report import COUNTS, PAGES, facts, verdict_of
from cometmq.cli.demo.stage import Observed, Plan
from cometmq.durable import replace_file

_WAY: Final = {
    "acknowledged": "acknowledged to producers",
    "stored": "stored by the broker",
    "consumed": "consumed by the group",
    "archived": "archived as Parquet",
    "replayed": "replayed from the archive",
    "copied": "stored in the copy",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>CometMQ demo</title><style>
:root {{ color-scheme: light dark; --ink: #1e293b; --dim: #64748b; --line: #e2e8f0; --card: #f8fafc; --back: #ffffff }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #e2e8f0; --dim: #94a3b8; --line: #334155; --card: #1e293b; --back: #0f172a }}
}}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: var(--ink); background: var(--back) }}
h1 {{ margin: 0 0 .5rem }} h2 {{ margin: 2.5rem 0 .75rem; font-size: 1.15rem }}
.verdict {{ border-left: .35rem solid {color}; background: var(--card); padding: .8rem 1rem; margin: 1rem 0 1.5rem }}
.verdict ul {{ margin: .4rem 0 0 }}
ol.way {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; padding: 0;
  list-style: none }}
ol.way li {{ background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }}
ol.way b {{ display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums }}
ol.way span, .dim {{ color: var(--dim); font-size: .9rem }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1.25rem; margin: 0 }}
dt {{ font-weight: 600 }} dd {{ margin: 0 }}
table {{ border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }}
th, td {{ text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line) }}
tfoot td {{ font-weight: 600 }} td.good {{ color: #15803d }} td.bad {{ color: #dc2626 }}
img {{ max-width: 100%; background: #fff; border-radius: .6rem; margin-top: .75rem }}
pre {{ background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem;
  overflow-x: auto }}
</style></head><body>
<h1>From producer to archive and back</h1>
<p class="dim">{plan}</p>
<div class="verdict">{verdict}</div>
<ol class="way">{way}</ol>
<h2>What happened</h2>
<dl>{facts}</dl>
<h2>What Spark found</h2>
<p>{links}</p>
{picture}
<h2>Messages by queue</h2>
<table><thead><tr><th>Queue</th>{heads}<th></th></tr></thead>
<tbody>{rows}</tbody>
<tfoot><tr><td>all</td>{totals}{mark}</tr></tfoot></table>
<p class="dim">Copies are records that stand twice since their acknowledgement got lost when the broker was killed, and
the producer sent them again.</p>
<h2>Look for yourself</h2>
<pre>{snippet}</pre>
</body></html>
"""
_SNIPPET: Final = """from cometmq.spark.archive_reader import read_archive
from cometmq.spark.environment import local_session

spark = local_session()
orders = read_archive(spark, "{archive}")
orders.groupBy("tags").count().show()
orders.selectExpr("queueId", "queueOffset", "storeTimestamp", "cast(body AS string) AS body").show(5, truncate=False)"""
_NO_PICTURE: Final = "<p>Plots need matplotlib: <code>pip install 'cometmq[plot]'</code></p>"


def write_page(plan: Plan, seen: Observed, verdict: Comparison, picture: Path | None) -> None:
    """Write report.html; `picture` becomes part of it."""
    page = _PAGE.format(
        color="#15803d" if verdict.agrees else "#dc2626",
        plan=f"{plan.messages:,} changes of orders, {plan.producers} producers, {plan.consumers} consumers, "
        "one broker killed on the way",
        verdict=_verdict(verdict),
        way="".join(f"<li><b>{verdict.total(name):,}</b><span>{what}</span></li>" for name, what in _WAY.items()),
        facts="".join(f"<dt>{name}</dt><dd>{html.escape(fact)}</dd>" for name, fact in facts(plan, seen, verdict)),
        links=" · ".join(f'<a href="{page}">{html.escape(what)}</a>' for page, what in PAGES.items()),
        picture=_NO_PICTURE if picture is None else _embedded(picture),
        heads="".join(f"<th>{title}</th>" for title in COUNTS.values()),
        rows="".join(map(_row, verdict.queues)),
        totals=_cells(verdict.total(name) for name in COUNTS),
        mark=_mark(verdict.agrees),
        snippet=html.escape(_SNIPPET.format(archive=plan.directory / "archive")),
    )
    replace_file(plan.directory / "report.html", page.encode())


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


def _embedded(picture: Path) -> str:
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<img alt="Rates, counts by queue, and the steps of Spark" src="data:image/png;base64,{data}">'
