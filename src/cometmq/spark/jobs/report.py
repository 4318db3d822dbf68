"""The report of a job: frozen data that one piece of code prints as text, as JSON and as an HTML page.

A job's own report has its figures as fields and says which paragraphs, tables and plots show them. The pages of the
demo have the same look: :func:`page` and :data:`STYLE` suit wide and narrow screens, light and dark.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import msgspec
import numpy as np
from rich.cells import cell_len

from cometmq.durable import replace_file
from cometmq.quantity import quantity

FAILED: Final = 1
PARTLY_DONE: Final = 3
"""Exit codes of commands."""
_BAR_CHARS: Final = 40

Cell = str | int | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table in the text; each column is as wide as its widest cell, so that most tables fit into 80 characters."""

    heads: Sequence[str]
    """One for each column, with ``<`` in front where it is flush left, ``>`` where flush right."""
    rows: Sequence[Sequence[Cell]]
    """Text as it is; numbers get commas, and None is a dash."""
    most: int | None = None
    """Rows that the text shows; the JSON has all …"""
    what: str = "rows"
    """… of these."""

    def lines(self) -> list[str]:
        """The lines of the table, its heads first, each indented by two blanks."""
        shown = self.rows[: self.most]
        cells = [[head[1:] for head in self.heads], *([_text(value) for value in row] for row in shown)]
        widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
        lines = ["  " + "  ".join(map(_padded, row, self.heads, widths)).rstrip() for row in cells]
        if len(shown) < len(self.rows):
            lines.append(f"  … and {len(self.rows) - len(shown):,} more {self.what} (-o json has all)")
        return lines


@dataclass(frozen=True, slots=True)
class Bars:
    """A plot with a bar for each name and series; without names there is no picture."""

    title: str
    unit: str
    """Unit of the bars' heights."""
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


def bars(title: str, unit: str, counts: Iterable[tuple[str, float]]) -> Bars:
    """Return a plot with one series."""
    found = list(counts)
    return Bars(title, unit, [name for name, _ in found], {unit: [count for _, count in found]})


@dataclass(frozen=True, slots=True)
class Line:
    """A plot of series over ``at``."""

    title: str
    unit: str
    label: str
    at: Sequence[float]
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Spans:
    """A waterfall: one bar below the other, each from its begin over its length."""

    title: str
    label: str
    names: Sequence[str]
    begins: Sequence[float]
    lengths: Sequence[float]


Plot = Bars | Line | Spans


@dataclass(frozen=True, slots=True)
class Step:
    """One step that a job has just committed; its text is a line of progress."""

    messages: int
    total: int
    """Messages of this run so far."""
    seconds: float
    """Duration of this run so far."""

    def __str__(self) -> str:
        return f"{self._done()}; {self.total:,} so far, {per_second(self.total, self.seconds):,.0f} messages/s"

    def _done(self) -> str:
        return f"{quantity(self.messages, 'message')} copied"


def moment(at_ms: int, unit: Literal["s", "m"] = "s") -> str:
    """Return a time in UTC, to the second or the minute, also one of a year beyond 9999."""
    return str(np.datetime64(at_ms // (1000 if unit == "s" else 60_000), unit)).replace("T", " ")


def per_second(count: float, seconds: float) -> float:
    """Return a rate; 0 without a duration."""
    return count / seconds if seconds else 0.0


class Report:
    """The base of all reports; its subclasses are frozen dataclasses that say what their text and plots show."""

    TITLE: ClassVar[str]
    """Title of the page, a format of the report's attributes: ``Audit of {0.topic}``."""
    COMPUTED: ClassVar[tuple[str, ...]] = ()
    """Properties that the JSON has beside the fields."""

    @property
    def title(self) -> str:
        """The title of the page."""
        return self.TITLE.format(self)

    @property
    def exit_code(self) -> int:
        """The exit code of the job's command; anything but 0 gives the page the mark of something to look at."""
        return 0

    def _parts(self) -> Iterator[str | Table]:
        """Give the lines and tables of the text; a table has an empty line before it."""
        raise NotImplementedError

    def _plots(self) -> Sequence[Plot]:
        """Give the pictures of the page."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain | {name: getattr(self, name) for name in self.COMPUTED}

    def render(self) -> str:
        """A summary to read in a terminal."""
        lines: list[str] = []
        for part in self._parts():
            lines += [part] if isinstance(part, str) else ["", *part.lines()]
        return "\n".join(lines)

    def write_page(self, path: Path, header: str = "") -> None:
        """Write the report as one HTML page, with plots where matplotlib is installed.

        :param header: a line below the title.
        """
        from cometmq.spark.jobs.report import write_page

        write_page(self, self._plots(), path, header)


class RunReport(Report):
    """The base of reports of runs that can be stopped and go on."""

    finished: bool
    """False if the run was stopped before its end."""
    warnings: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """True if nothing is missing: the run came to its end without warnings."""
        return self.finished and not self.warnings

    @property
    def exit_code(self) -> int:
        """3 if something is missing."""
        return 0 if self.complete else PARTLY_DONE

    def _ending(self, going_on: str) -> Iterator[str]:
        """Give the last lines of the text."""
        if not self.finished:
            yield f"\nstopped before the end; run it again {going_on}"
        if self.warnings:
            yield "\n" + "\n".join(f"warning: {warning}" for warning in self.warnings)


def bar_rows(counts: Iterable[tuple[str, int]], chars: int = _BAR_CHARS) -> list[tuple[str, int, str]]:
    """Rows of a table with a bar of at most so many characters behind each count."""
    found = list(counts)
    most = max((count for _, count in found), default=0)
    return [(name, count, "█" * max(1, count * chars // most)) for name, count in found]


def _text(value: Cell) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else value


def _padded(text: str, head: str, width: int) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if head.startswith(">") else text + gap


NO_PLOTS: Final = "<p>Plots need matplotlib: <code>pip install 'cometmq[plot]'</code></p>"
STYLE: Final = """
:root { color-scheme: light dark; --ink: #1e293b; --dim: #64748b; --line: #e2e8f0; --card: #f8fafc; --back: #ffffff;
  --good: #15803d; --bad: #b91c1c; --link: #0e7490 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e2e8f0; --dim: #94a3b8; --line: #334155; --card: #1e293b; --back: #0f172a;
    --good: #4ade80; --bad: #f87171; --link: #22d3ee }
}
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2.5rem auto; padding: 0 1.25rem;
  color: var(--ink); background: var(--back); overflow-wrap: break-word }
h1 { margin: 0 0 .75rem; line-height: 1.25 } h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem }
a { color: var(--link) } .good { color: var(--good) } .bad { color: var(--bad) }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: .8rem 1rem;
  overflow-x: auto; line-height: 1.35; font-size: .875rem }
.wide { overflow-x: auto; margin-top: .75rem }
.wide img { display: block; width: 100%; min-width: 40rem; background: #fff; border-radius: .6rem }
@media (max-width: 40rem) { body { margin: 1.25rem auto } h1 { font-size: 1.4rem } }
"""
"""Pictures, and whatever else is in a ``wide`` box, are scrolled sideways where they do not fit."""


_COLORS: Final = ("#0e7490", "#d97706", "#a21caf", "#64748b")
_CHINESE: Final = ("Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC")
_MOST_BARS: Final = 500
"""Bars that a plot can show one by one, as wide as it is; each costs a millisecond."""
_MOST_NAMES: Final = 40
"""Names of bars that can be read below them; of more bars only every second, third … is named."""
_NAME_CHARS: Final = 24
"""Characters of one line of a name: longer ones would leave no room for the bars."""
_UPRIGHT_CHARS: Final = 90
"""Characters of all names from which on they are drawn aslant."""
_FEW_POINTS: Final = 60
"""Points of a line up to which each is marked: one alone would not be seen."""


def write_page(report: Report, plots: Sequence[Plot], path: Path, header: str) -> None:
    """Write the page of a report; it needs no other file."""
    mark = '<span class="bad">✘</span>' if report.exit_code else '<span class="good">✔</span>'
    pictures = _drawn(plots) if importlib.util.find_spec("matplotlib") else NO_PLOTS
    below = f"<p>{html.escape(header)}</p>\n" if header else ""
    text = f"<pre>{html.escape(report.render())}</pre>"
    replace_file(path, page(report.title, f"<h1>{mark} {html.escape(report.title)}</h1>\n{below}{text}\n{pictures}"))


def page(title: str, body: str, style: str = "") -> bytes:
    """The whole page.

    :param title: plain text.
    :param body: HTML.
    :param style: more CSS, after the common one.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    ).encode()


def picture(png: bytes, alt: str) -> str:
    """A PNG as HTML that needs no file beside it."""
    data = base64.b64encode(png).decode()
    return f'<div class="wide"><img alt="{html.escape(alt)}" src="data:image/png;base64,{data}"></div>'


def _drawn(plots: Sequence[Plot]) -> str:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titleweight": "bold"}
    # Keys and tags are anybody's: they may have dollar signs, and letters that no font here has.
    style |= {"text.parse_math": False, "font.family": _families()}
    pictures = []
    with pyplot.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        for plot in plots:
            if isinstance(plot, Bars) and not plot.names:
                continue
            figure, axes = pyplot.subplots(figsize=(10, 3.5), layout="constrained")
            if isinstance(plot, Spans):
                _draw_spans(axes, plot)
            else:
                _draw_series(axes, plot)
            axes.set_title(_title(plot), loc="left")
            png = io.BytesIO()
            figure.savefig(png, dpi=130)
            pyplot.close(figure)
            pictures.append(picture(png.getvalue(), plot.title))
    return "\n".join(pictures)


def _title(plot: Plot) -> str:
    if isinstance(plot, Bars) and len(plot.names) > _MOST_BARS:
        return f"{plot.title} (the first {_MOST_BARS:,} of {len(plot.names):,})"
    return plot.title


def _families() -> list[str]:
    """The usual font, and behind it those that are here of the ones that systems have for Chinese."""
    from matplotlib import font_manager

    here = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _CHINESE if name in here)]


def _draw_series(axes: Any, plot: Bars | Line) -> None:
    if isinstance(plot, Bars):
        _draw_bars(axes, plot)
    else:
        _draw_line(axes, plot)
    axes.set_ylim(0, None)
    axes.set_ylabel(plot.unit)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    if len(plot.series) > 1:
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(plot.series))


def _draw_spans(axes: Any, plot: Spans) -> None:
    least = max((begin + length for begin, length in zip(plot.begins, plot.lengths, strict=True)), default=1) / 200
    places = range(len(plot.names))
    axes.barh(places, [max(length, least) for length in plot.lengths], left=plot.begins, color=_COLORS[0])
    axes.set_yticks(places, plot.names)
    axes.invert_yaxis()
    axes.set_xlabel(plot.label)
    axes.xaxis.set_major_formatter("{x:,.10g}")


def _draw_bars(axes: Any, plot: Bars) -> None:
    width = 0.8 / len(plot.series)
    count = min(len(plot.names), _MOST_BARS)
    for index, (name, heights) in enumerate(plot.series.items()):
        places = [place + (index - (len(plot.series) - 1) / 2) * width for place in range(count)]
        axes.bar(places, heights[:count], width * 0.92, color=_COLORS[index % len(_COLORS)], label=name)
    named = range(0, count, -(-count // _MOST_NAMES))
    names = ["\n".join(_cut(line) for line in plot.names[place].split("\n")) for place in named]
    widths = [max(map(len, name.split("\n"))) for name in names]
    aslant: Any = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(named, names, **aslant if sum(widths) > _UPRIGHT_CHARS else {})


def _cut(text: str) -> str:
    return text if len(text) <= _NAME_CHARS else text[: _NAME_CHARS - 1] + "…"


def _draw_line(axes: Any, plot: Line) -> None:
    for index, (name, values) in enumerate(plot.series.items()):
        # Later ones are thinner, so that curves that agree can be seen below each other.
        width, color = max(1.2, 4 - 1.4 * index), _COLORS[index % len(_COLORS)]
        marker = "o" if len(values) <= _FEW_POINTS else ""
        axes.plot(plot.at, values, color=color, label=name, linewidth=width, marker=marker, markersize=2 * width)
    axes.set_xlabel(plot.label)
