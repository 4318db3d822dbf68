"""Draws plots as SVG with matplotlib, once for wide and once for narrow screens.

Title and legend are HTML next to the picture, so that they wrap. Labels are text in the SVG, so that the browser can
display every script. Colours are variables, which a rule inside the SVG sets for light and dark screens. Each picture
is a separate image (``data:``), so nothing in it can run code or change the page.
"""

from __future__ import annotations

import base64
import html
import importlib.util
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len, set_cell_size

from cometmq.spark.jobs.report.page import SERIES, TEXT, color_rules, shown
from cometmq.spark.jobs.report.plots import Bars, Line, Plot, Spans

_CHINESE: Final = ("Noto Sans CJK SC", "Source Han Sans SC", "WenQuanYi Micro Hei", "Microsoft YaHei", "PingFang SC")
MOST_BARS: Final = 500
"""Maximum number of bars that a plot shows. Drawing a bar takes a millisecond."""
_MOST_SPANS: Final = 100
_FEW_POINTS: Final = 60
"""Maximum number of points in a line whose points are marked. If it were not marked, a single point would be
invisible.
"""
_INK: Final = TEXT["ink"][0]
_LINE: Final = TEXT["line"][0]
_SHADE: Final = TEXT["bad"][0]
_COLORS: Final = tuple(light for light, _ in SERIES)
_CHAR_EM: Final = 0.68
"""Width of most letters and digits in DejaVu Sans, which is wider than other browser fonts."""


@dataclass(frozen=True, slots=True)
class Size:
    """A picture's size, chosen so that its text is readable."""

    width: float
    """Width in points. One point is one pixel on a narrow screen, and 1.4 pixels on a wide screen."""
    height: float
    font: float
    name_chars: int
    """Maximum width of one line of a name, in cells. Longer lines would leave no room for the bars."""

    @property
    def room(self) -> float:
        """Distance between the axes in points."""
        return self.width - 8 * self.font

    @property
    def ticks(self) -> int:
        """Maximum number of labels such as 1,200,000 below an axis."""
        return max(2, int(self.room / (9 * _CHAR_EM * self.font)) - 1)


WIDE: Final = Size(720, 252, 9.5, 24)
NARROW: Final = Size(360, 280, 10.5, 16)


def figures(plots: Sequence[Plot]) -> list[str] | None:
    """Return the HTML of each plot, or ``None`` if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    return [_figure(plot) for plot in plots if isinstance(plot, Line) or plot.names]


def png(plot: Plot) -> bytes:
    """Draw a plot with a legend as a standalone picture for light backgrounds."""
    return _drawn(plot, WIDE, "png", legend=True)


def _figure(plot: Plot) -> str:
    title = html.escape(shown(title_of(plot)))
    names = [] if isinstance(plot, Spans) or len(plot.series) < 2 else list(plot.series)
    keys = [f'<span class="key k{at % len(SERIES)}">{html.escape(shown(name))}</span>' for at, name in enumerate(names)]
    if isinstance(plot, Line) and plot.shaded is not None:
        keys.append(f'<span class="key shade">{html.escape(shown(plot.shaded[0]))}</span>')
    wide, narrow = (_svg(_drawn(plot, size, "svg")) for size in (WIDE, NARROW))
    return (
        f"<figure><figcaption><h2>{title}</h2>{' '.join(keys)}</figcaption><picture>"
        f'<source media="(max-width: 40rem)" srcset="{narrow}"><img alt="{title}" src="{wide}"></picture></figure>'
    )


def title_of(plot: Plot) -> str:
    """Return a plot's title, which also states whether bars are left out."""
    most = {Bars: MOST_BARS, Spans: _MOST_SPANS}.get(type(plot))
    if isinstance(plot, Line) or most is None or len(plot.names) <= most:
        return plot.title
    return f"{plot.title} (the first {most:,} of {len(plot.names):,})"


def _svg(drawn: bytes) -> str:
    """Return a picture as a data URL whose colours are variables."""
    text = drawn.decode()
    text = text[text.index("<svg") :]
    names = {light: f"var(--{name})" for name, (light, _) in TEXT.items()}
    names |= {light: f"var(--s{at})" for at, (light, _) in enumerate(SERIES)}
    text = re.sub(r"(?<=fill: |roke: )#[0-9a-f]{6}", lambda color: names.get(color[0], color[0]), text)
    style = f"svg {{ {color_rules(0)} }} @media (prefers-color-scheme: dark) {{ svg {{ {color_rules(1)} }} }}"
    begin = text.index(">") + 1
    text = f"{text[:begin]}<style>{style}</style>{text[begin:]}"
    return f"data:image/svg+xml;base64,{base64.b64encode(text.encode()).decode()}"


def _drawn(plot: Plot, size: Size, form: str, *, legend: bool = False) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    # Applications choose keys and tags, which may contain dollar signs, and letters that no installed font contains.
    style: Any = {"text.parse_math": False, "font.family": _families(), "font.size": size.font}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none", "svg.hashsalt": "cometmq"}
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), _INK)
    with pyplot.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure, axes = pyplot.subplots(figsize=(size.width / 72, _height(plot, size) / 72), layout="constrained")
        try:
            draw(axes, plot, size)
            if legend:
                axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4)
            picture = io.BytesIO()
            more: Any = {"dpi": 130} if form == "png" else {"transparent": True, "metadata": {"Date": None}}
            figure.savefig(picture, format=form, **more)
        finally:
            pyplot.close(figure)
    return picture.getvalue()


def _height(plot: Plot, size: Size) -> float:
    if not isinstance(plot, Spans):
        return size.height
    return max(size.height / 2, 1.6 * size.font * min(len(plot.names), _MOST_SPANS) + 4 * size.font)


def _families() -> list[str]:
    """Return the default font, followed by installed fonts for Chinese."""
    from matplotlib import font_manager

    here = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in _CHINESE if name in here)]


def draw(axes: Any, plot: Plot, size: Size) -> None:
    """Draw a plot on matplotlib axes."""
    if isinstance(plot, Spans):
        _draw_spans(axes, plot, size)
        return
    if isinstance(plot, Bars):
        _draw_bars(axes, plot, size)
    else:
        _draw_line(axes, plot, size)
    axes.set_ylim(0, None)
    axes.set_ylabel(plot.unit)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(axis="y", color=_LINE, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_spans(axes: Any, plot: Spans, size: Size) -> None:
    names, begins, lengths = plot.names[:_MOST_SPANS], plot.begins[:_MOST_SPANS], plot.lengths[:_MOST_SPANS]
    least = max((begin + length for begin, length in zip(begins, lengths, strict=True)), default=1) / 200
    places = range(len(names))
    axes.barh(places, [max(length, least) for length in lengths], left=begins, color=_COLORS[0])
    axes.set_yticks(places, [_cut(name, size.name_chars) for name in names])
    axes.invert_yaxis()
    _number_x(axes, plot.label, size)


def _draw_bars(axes: Any, plot: Bars, size: Size) -> None:
    width = 0.8 / len(plot.series)
    count = min(len(plot.names), MOST_BARS)
    for index, (name, heights) in enumerate(plot.series.items()):
        places = [place + (index - (len(plot.series) - 1) / 2) * width for place in range(count)]
        axes.bar(places, heights[:count], width * 0.92, color=_COLORS[index % len(_COLORS)], label=shown(name))
    _name_bars(axes, plot.names[:count], size)


def _name_bars(axes: Any, names: Sequence[str], size: Size) -> None:
    """Label the bars: horizontally if there is room for all names, otherwise at an angle. Names for which there is no
    room are left out.
    """
    cut = ["\n".join(_cut(line, size.name_chars) for line in name.split("\n")) for name in names]
    widest = max(cell_len(line) for name in cut for line in name.split("\n"))
    if (widest + 1) * _CHAR_EM * size.font * len(cut) <= size.room:
        axes.set_xticks(range(len(cut)), cut)
        return
    lines = max(name.count("\n") for name in cut) + 1
    most = int(size.room / (1.75 * size.font * lines))  # a line is 1.2 em high, and 1.7 em aslant
    named = range(0, len(cut), -(-len(cut) // most))
    axes.set_xticks(named, [cut[at] for at in named], rotation=45, ha="right", rotation_mode="anchor")


def _cut(text: str, cells: int) -> str:
    text = shown(text)
    return text if cell_len(text) <= cells else set_cell_size(text, cells - 1).rstrip() + "…"


def _draw_line(axes: Any, plot: Line, size: Size) -> None:
    for index, (name, values) in enumerate(plot.series.items()):
        # Later lines are thinner, so that a curve is visible below an equal one.
        width, color = max(1.2, 4 - 1.4 * index), _COLORS[index % len(_COLORS)]
        marker = "o" if len(values) <= _FEW_POINTS else ""
        axes.plot(plot.at, values, color=color, label=shown(name), linewidth=width, marker=marker, markersize=2 * width)
    if plot.shaded is not None:
        name, begin, end = plot.shaded
        axes.axvspan(begin, end, color=_SHADE, alpha=0.25, label=shown(name))
    _number_x(axes, plot.label, size)


def _number_x(axes: Any, label: str, size: Size) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(shown(label))
    axes.xaxis.set_major_locator(MaxNLocator(size.ticks))
    axes.xaxis.set_major_formatter("{x:,.10g}")
