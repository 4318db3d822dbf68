"""The picture of the demo: rates over time with the crash, the counts of every queue, and the steps of Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from cometmq.cli.demo.compare import Comparison
from cometmq.cli.demo.report import ended_ms, rate_over_time
from cometmq.cli.demo.stage import Observed

BIN_SECONDS: Final = 0.25
_SERIES: Final = (
    ("acknowledged", "#0e7490"),
    ("stored", "#64748b"),
    ("consumed", "#a21caf"),
    ("archived", "#d97706"),
    ("replayed", "#65a30d"),
    ("copied", "#1d4ed8"),
)


def draw(seen: Observed, verdict: Comparison, path: Path) -> None:
    """Write the picture as a PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    style: Any = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10, "axes.titleweight": "bold"}
    with pyplot.rc_context(style):
        figure, (top, middle, bottom) = pyplot.subplots(
            3, 1, figsize=(10, 9), height_ratios=(3, 2, 1.6), layout="constrained"
        )
        _rates(top, seen)
        _counts(middle, verdict)
        _steps(bottom, seen)
        ending = "all counts agree" if verdict.agrees else "THE COUNTS DIFFER"
        figure.suptitle(f"CometMQ: {verdict.total('acknowledged'):,} messages end to end, {ending}", fontsize=13)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def _rates(axes: Any, seen: Observed) -> None:
    end = ended_ms(seen)
    bins = max(4, int((end - seen.began_ms) / 1000 / BIN_SECONDS))
    middle = (np.arange(bins) + 0.5) * (end - seen.began_ms) / 1000 / bins
    produced = rate_over_time(seen.acked, seen.began_ms, end, bins) / 1000
    consumed = rate_over_time(seen.consumed, seen.began_ms, end, bins) / 1000
    axes.fill_between(middle, produced, alpha=0.25, color="#0e7490", step="mid")
    axes.step(middle, produced, where="mid", color="#0e7490", label="acknowledged to producers")
    axes.step(middle, consumed, where="mid", color="#a21caf", label="received by consumers")
    killed, back = ((at - seen.began_ms) / 1000 for at in (seen.killed_ms, seen.back_ms))
    axes.axvspan(killed, back, color="#dc2626", alpha=0.15, label="broker down (SIGKILL)")
    axes.set(xlabel="seconds", ylabel="thousand messages/s", title="The stream", xlim=(0, middle[-1]), ylim=(0, None))
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)


def _counts(axes: Any, verdict: Comparison) -> None:
    places = np.arange(len(verdict.queues))
    width = 0.8 / len(_SERIES)
    for index, (name, color) in enumerate(_SERIES):
        heights = [getattr(counts, name) for counts in verdict.queues]
        axes.bar(places + (index - (len(_SERIES) - 1) / 2) * width, heights, width * 0.92, color=color, label=name)
    axes.set(title="Counts by queue", xlabel="queue", ylabel="messages")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xticks(places, [str(counts.queue) for counts in verdict.queues])
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=len(_SERIES))


def _steps(axes: Any, seen: Observed) -> None:
    """One bar below the other, each from the end of the one before."""
    names = {"session": "session starts", "audit again": "audit of the copy", "audit": "audit of the archive"}
    lengths = seen.lake.seconds
    begins = np.cumsum([0.0, *lengths.values()])[:-1]
    axes.barh(range(len(lengths)), list(lengths.values()), left=begins, color="#d97706", height=0.6)
    for place, (begin, length) in enumerate(zip(begins, lengths.values(), strict=True)):
        axes.annotate(f" {length:.1f} s", (begin + length, place), va="center")
    axes.set_yticks(range(len(lengths)), [names.get(name, name) for name in lengths])
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlim(0, None)
    axes.set(title="Spark", xlabel="seconds")
