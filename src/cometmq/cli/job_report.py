"""The report of a Spark job as one HTML page: the text of the terminal, and plots where matplotlib is there."""

from __future__ import annotations

import html
import importlib.util
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.cli.page_style import NO_PLOTS, page, picture
from cometmq.durable import replace_file

_COLORS: Final = ("#0e7490", "#d97706", "#a21caf", "#64748b")
_CHINESE: Final = ("Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC")
_MOST_BARS: Final = 500
"""Bars that can be told apart in a plot, as wide as it is; each costs a millisecond."""
_MOST_NAMES: Final = 40
"""Names of bars that can be read below them; of more bars only every second, third … is named."""
_NAME_CHARS: Final = 24
"""Of one line of a name: longer ones would leave no room for the bars."""
_UPRIGHT_CHARS: Final = 90
"""Of all names, from which on they stand aslant."""
_FEW_POINTS: Final = 60
"""Of a line, which are marked then: one alone would not be seen."""


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each name and series; without names there is no picture."""

    title: str
    unit: str
    """What the bars' heights are."""
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Line:
    """Series over ``at``."""

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


def write_page(path: Path, title: str, good: bool, text: str, plots: Sequence[Plot]) -> None:
    """Write the page; it needs nothing beside it.

    :param good: whether all is as it should be, for the mark before the title.
    :param text: the report as the terminal shows it.
    """
    mark = '<span class="good">✔</span>' if good else '<span class="bad">✘</span>'
    pictures = _drawn(plots) if importlib.util.find_spec("matplotlib") else NO_PLOTS
    body = f"<h1>{mark} {html.escape(title)}</h1>\n<pre>{html.escape(text)}</pre>\n{pictures}"
    replace_file(path, page(title, body))


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
