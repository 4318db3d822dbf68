"""The report of a Spark job as one HTML page: the text of the terminal, and plots where matplotlib is there."""

from __future__ import annotations

import base64
import html
import importlib.util
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cometmq.durable import replace_file

_COLORS: Final = ("#0e7490", "#d97706", "#a21caf", "#64748b")
_NO_PLOTS: Final = "<p>Plots need matplotlib: <code>pip install 'cometmq[plot]'</code></p>"
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font-family: system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1e293b }}
pre {{ background: #f1f5f9; padding: 1rem; overflow-x: auto; line-height: 1.35 }}
img {{ max-width: 100% }}
h1 span {{ color: {color} }}
</style></head><body>
<h1><span>{mark}</span> {title}</h1>
<pre>{text}</pre>
{plots}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Bars:
    """A bar for each name and series."""

    title: str
    names: Sequence[str]
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Line:
    """Series over ``at``."""

    title: str
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
    page = _PAGE.format(
        title=html.escape(title),
        color="#15803d" if good else "#b91c1c",
        mark="✔" if good else "✘",
        text=html.escape(text),
        plots=_drawn(plots) if importlib.util.find_spec("matplotlib") else _NO_PLOTS,
    )
    replace_file(path, page.encode())


def _drawn(plots: Sequence[Plot]) -> str:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titleweight": "bold"}
    pictures = []
    with pyplot.rc_context(style):
        for plot in plots:
            figure, axes = pyplot.subplots(figsize=(10, 3.5), layout="constrained")
            if isinstance(plot, Spans):
                _draw_spans(axes, plot)
            else:
                _draw_series(axes, plot)
            axes.set_title(plot.title)
            picture = io.BytesIO()
            figure.savefig(picture, dpi=110)
            pyplot.close(figure)
            data = base64.b64encode(picture.getvalue()).decode()
            pictures.append(f'<img alt="{html.escape(plot.title)}" src="data:image/png;base64,{data}">')
    return "\n".join(pictures)


def _draw_series(axes: Any, plot: Bars | Line) -> None:
    if isinstance(plot, Bars):
        _draw_bars(axes, plot)
    else:
        _draw_line(axes, plot)
    axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    if len(plot.series) > 1:
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=len(plot.series))


def _draw_spans(axes: Any, plot: Spans) -> None:
    least = max((begin + length for begin, length in zip(plot.begins, plot.lengths, strict=True)), default=1) / 200
    places = range(len(plot.names))
    axes.barh(places, [max(length, least) for length in plot.lengths], left=plot.begins, color=_COLORS[0])
    axes.set_yticks(places, plot.names)
    axes.invert_yaxis()
    axes.set_xlabel(plot.label)


def _draw_bars(axes: Any, plot: Bars) -> None:
    width = 0.8 / len(plot.series)
    for index, (name, heights) in enumerate(plot.series.items()):
        places = [place + (index - (len(plot.series) - 1) / 2) * width for place in range(len(plot.names))]
        axes.bar(places, heights, width * 0.92, color=_COLORS[index % len(_COLORS)], label=name)
    axes.set_xticks(range(len(plot.names)), plot.names, rotation=45 if len(plot.names) > 8 else 0)


def _draw_line(axes: Any, plot: Line) -> None:
    for index, (name, values) in enumerate(plot.series.items()):
        axes.plot(plot.at, values, color=_COLORS[index % len(_COLORS)], label=name)
    axes.set_xlabel(plot.label)
