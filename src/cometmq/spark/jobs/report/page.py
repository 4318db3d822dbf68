"""The pages of the jobs and the demo. They share one design for light and dark screens with a width of at least 390
pixels.

A page needs no other files and no network. Its only script sorts tables. The page's policy forbids all other scripts,
so that nothing in a message can run, even if the message were inserted as markup. All text is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len

from cometmq.errors import pip_install
from cometmq.quantity import quantity
from cometmq.spark.jobs.report.parts import Bar, Cell, Notes, Part, Table, TextOnly, cell_text

TEXT: Final = {
    "ink": ("#1e293b", "#e2e8f0"),
    "dim": ("#56657a", "#94a3b8"),
    "line": ("#dbe3ec", "#334155"),
    "card": ("#f8fafc", "#1e293b"),
    "back": ("#ffffff", "#0f172a"),
    "good": ("#15803d", "#4ade80"),
    "bad": ("#b91c1c", "#f87171"),
    "link": ("#0e6f8a", "#22d3ee"),
}
"""Colours by name, for light and dark screens."""
SERIES: Final = (("#0e7490", "#22d3ee"), ("#d97706", "#fbbf24"), ("#a21caf", "#e879f9"), ("#64748b", "#a3b1c4"))
"""Colours of plots."""
NO_PLOTS: Final = f"<p>Plots need matplotlib: <code>{html.escape(pip_install('plot'), quote=False)}</code></p>"
_SHORT_CELLS: Final = 32
"""Maximum length of a text that a table keeps on one line."""
_MOST_ROWS: Final = 1000
"""Maximum number of table rows on the page. More rows would slow down browsers."""


def color_rules(scheme: int) -> str:
    """Return the colours as CSS variables: 0 for light screens, 1 for dark screens."""
    named = {**TEXT, **{f"s{at}": pair for at, pair in enumerate(SERIES)}}
    return " ".join(f"--{name}: {pair[scheme]};" for name, pair in named.items())


_STYLE: Final = (
    f"""
:root {{ color-scheme: light dark; {color_rules(0)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {color_rules(1)} }} }}
"""
    + """
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: var(--ink); background: var(--back); overflow-wrap: anywhere }
h1 { margin: 0 0 .5rem; line-height: 1.25 }
h2, caption { font-size: 1.1rem; font-weight: 600; margin: 0; text-align: left }
a { color: var(--link) } .dim { color: var(--dim) }
.verdict { border-left: .35rem solid var(--good); background: var(--card); padding: .8rem 1rem; margin: 1rem 0 }
.verdict.bad { border-color: var(--bad) } .verdict > b { font-size: 1.15rem }
.verdict i { font-style: normal; color: var(--good) } .verdict.bad i { color: var(--bad) }
.verdict p { margin: .35rem 0 0 } ul { margin: .35rem 0; padding-left: 1.25rem }
ul small { display: block; font-size: .95em; color: var(--dim) }
ol.way { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .75rem; padding: 0;
  list-style: none }
ol.way li { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .7rem .9rem }
ol.way b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums }
ol.way span { color: var(--dim); font-size: .9rem }
section, figure { margin: 2.25rem 0 0 }
figure img { display: block; width: 100%; margin-top: .5rem }
.key { display: inline-block; margin-right: 1rem; font-size: .9rem }
.key::before { content: ""; display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin-right: .4em;
  background: var(--key) }
.k0 { --key: var(--s0) } .k1 { --key: var(--s1) } .k2 { --key: var(--s2) } .k3 { --key: var(--s3) }
.shade { --key: color-mix(in srgb, var(--bad) 35%, var(--back)) }
.wide { overflow-x: auto; margin-top: 2.25rem } .wide:focus-visible { outline: 2px solid var(--link) }
table { border-collapse: collapse; font-size: .925rem; min-width: min(100%, 34rem) }
caption { padding-bottom: .4rem; white-space: nowrap; font-size: 1.1rem }
th, td { padding: .3rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
th { padding: 0; background: var(--card); white-space: nowrap }
tfoot td { font-weight: 600; border-bottom: 0 }
.short, td.num { white-space: nowrap } .num { text-align: right; font-variant-numeric: tabular-nums }
.long { min-width: 14rem; max-width: 26rem }
th button { font: inherit; color: inherit; background: none; border: 0; width: 100%; padding: .35rem .7rem;
  text-align: inherit; cursor: pointer } th button:hover, th button:focus-visible { color: var(--link) }
th[aria-sort=ascending] button::after { content: " ▲" } th[aria-sort=descending] button::after { content: " ▼" }
td.bar { min-width: 8rem; width: 20rem } .bar > span { display: block; height: 1em; margin-top: .25em; min-width: 2px;
  border-radius: .15rem; background: var(--s0) }
.code { display: block; white-space: pre; overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; padding: .8rem 1rem; font-size: .875rem; line-height: 1.4; margin-top: .5rem }
@media (max-width: 40rem) {
  body { margin: 1.25rem auto; padding: 0 1rem } h1 { font-size: 1.4rem } ol.way { gap: .5rem;
    grid-template-columns: repeat(auto-fit, minmax(7.5rem, 1fr)) } ol.way li { padding: .5rem .7rem }
  ol.way b { font-size: 1.2rem } td, th button { padding-left: .5rem; padding-right: .5rem }
  caption { white-space: normal }
}
"""
)
_SCRIPT: Final = """
for (const table of document.querySelectorAll('table')) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, at) => head.querySelector('button')?.addEventListener('click', () => {
    const isNumber = head.classList.contains('num');
    const up = (head.ariaSort ?? 'none') === 'none' ? !isNumber : head.ariaSort === 'descending';
    const key = row => {
      const text = row.cells[at].textContent;
      return isNumber ? parseFloat(text.replaceAll(',', '')) : text;
    };
    const order = (a, b) => isNumber ? a - b : a.localeCompare(b, undefined, {numeric: true});
    const isEmpty = value => value === '–' || Number.isNaN(value);
    const rows = [...body.rows].map(row => [key(row), row]);
    rows.sort(([a], [b]) => isEmpty(a) || isEmpty(b) ? isEmpty(a) - isEmpty(b) : up ? order(a, b) : order(b, a));
    body.append(...rows.map(([, row]) => row));
    heads.forEach(other => other.ariaSort = 'none');
    head.ariaSort = up ? 'ascending' : 'descending';
  }));
}
"""
_POLICY: Final = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src "
    f"'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
)


def page(title: str, inside: str) -> bytes:
    """Return the complete page.

    :param title: plain text.
    :param inside: HTML.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{inside}\n<script>{_SCRIPT}</script></body></html>\n"
    ).encode()


def body(
    *,
    title: str,
    header: str,
    verdict: str,
    is_good: bool,
    figures: Sequence[tuple[str, str]],
    parts: Sequence[Part],
    plots: Sequence[str] | None,
) -> str:
    """Return the content of a report's page as HTML: the verdict, the figures, the plots, and the other parts.

    :param header: a line below the title; empty for no line.
    :param figures: numbers in large type, with their captions.
    :param plots: HTML of the plots; ``None`` if matplotlib is not installed.
    """
    first: list[Part] = [part for part in parts[:1] if isinstance(part, str)]
    urgent: list[Part] = [part for part in parts if isinstance(part, Notes) and part.urgent]
    rest = [part for part in parts[len(first) :] if not isinstance(part, TextOnly) and part not in urgent]
    return "\n".join(
        [
            f"<h1>{text(title)}</h1>",
            *([f'<p class="dim">{text(header)}</p>'] if header else []),
            verdict_card(verdict, is_good=is_good, below="".join(part_html(part) for part in [*first, *urgent])),
            *([cards(figures)] if figures else []),
            *([NO_PLOTS] if plots is None else plots),
            *map(part_html, rest),
        ]
    )


def verdict_card(verdict: str, *, is_good: bool, below: str = "") -> str:
    """Return the verdict with its mark.

    :param below: HTML.
    """
    kind, mark = ("good", "✔") if is_good else ("bad", "✘")
    return f'<div class="verdict {kind}"><b><i>{mark}</i> {text(verdict)}</b>{below}</div>'


def cards(figures: Sequence[tuple[str, str]]) -> str:
    """Return numbers in large type with their captions."""
    items = "".join(f"<li><b>{text(number)}</b><span>{text(caption)}</span></li>" for number, caption in figures)
    return f'<ol class="way">{items}</ol>'


def part_html(part: Part) -> str:
    """Return a part of a report as HTML."""
    if isinstance(part, Table):
        return table(part)
    if isinstance(part, Notes):
        return _notes(part)
    return f"<p>{text(part)}</p>" if isinstance(part, str) and part.strip() else ""


def _notes(notes: Notes) -> str:
    tag = "p" if notes.urgent else "h2"
    title = f"<{tag}>{text(_as_title(notes.title))}</{tag}>" if notes.title else ""
    items = []
    for at, item in enumerate(notes.items):
        step = "".join(f"<small>→ {text(step)}</small>" for step in notes.next_steps[at : at + 1])
        items.append(f"<li>{text(item)}{step}</li>")
    inside = title + (f"<ul>{''.join(items)}</ul>" if items else "")
    return inside if notes.urgent else f"<section>{inside}</section>"


def table(of: Table, foot: Sequence[Cell] = ()) -> str:
    """Return a table as HTML. Clicking a heading sorts it, and it scrolls sideways if it does not fit.

    :param foot: a row that stays last.
    """
    kinds = ["num" if head.startswith(">") else "" for head in of.heads]
    heads = []
    for head, kind in zip(of.heads, kinds, strict=True):
        name = text(head[1:])
        button = f'<button type="button">{name}</button>' if name else ""
        heads.append(f'<th scope="col" class="{kind}">{button}</th>' if name else "<td></td>")
    rows = "\n".join(_row(row, kinds) for row in of.rows[:_MOST_ROWS])
    caption = text(of.caption)
    if len(of.rows) > _MOST_ROWS:
        caption += f" (the first {quantity(_MOST_ROWS, 'row')} of {len(of.rows):,}; the JSON contains all)"
    below = f"<tfoot>{_row(foot, kinds)}</tfoot>" if foot else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{text(of.caption)}"><table>'
        f"<caption>{caption}</caption>"
        f"<thead><tr>{''.join(heads)}</tr></thead>\n<tbody>{rows}</tbody>{below}</table></div>"
    )


def _row(row: Sequence[Cell], kinds: Sequence[str]) -> str:
    return f"<tr>{''.join(map(_cell, row, kinds))}</tr>"


def _cell(value: Cell, kind: str) -> str:
    if isinstance(value, Bar):
        return f'<td class="bar"><span style="width: {100 * value.share:.1f}%"></span></td>'
    plain = cell_text(value)
    return f'<td class="{kind or ("short" if cell_len(plain) <= _SHORT_CELLS else "long")}">{text(plain)}</td>'


def _as_title(title: str) -> str:
    title = title.strip().removesuffix(":")
    return title[:1].upper() + title[1:]


def text(plain: str) -> str:
    """Escape text, so that nothing in it is markup."""
    return html.escape(shown(plain))


def shown(plain: str) -> str:
    """Replace control characters and lone surrogates with a visible mark."""
    return _NOT_SHOWN.sub("\ufffd", plain)


_NOT_SHOWN: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
