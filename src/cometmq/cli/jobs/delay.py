"""``cometmq pipeline delay``: how exact delayed messages were, what waits until when, and what is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.failures import DONE, PARTLY_DONE
from cometmq.cli.jobs.reading import Reading, end, reading_options, report_options, tell_step, wrong_use

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.delay_report import DelayReport

_DRAWN: Final = 12
"""Most topics in one plot."""


@click.command("delay")
@reading_options
@click.option("--topic", "topics", multiple=True, help="A topic; all but system topics by default.")
@click.option("--grace", type=click.FloatRange(0), default=60, show_default=True, help="Seconds; later is stuck.")
@click.option("--days", type=click.IntRange(1, 366), default=7, show_default=True, help="Days of what is due.")
@click.option("--top", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Topics, messages named.")
@click.option("--delay-levels", metavar="DELAYS", help="messageDelayLevel of an archive's or store's brokers.")
@report_options
def command(
    reading: Reading, topics: tuple[str, ...], grace: float, days: int, top: int, delay_levels: str | None
) -> int:
    """Show how exact delayed messages were, what waits until when, and what is stuck.

    Exit codes: 0 done; 1 failed; 2 wrong use; 3 something is stuck.
    """
    from cometmq.spark.delay import delay

    with wrong_use():
        done = delay(
            reading.source,
            topics,
            delay_levels=delay_levels,
            grace_ms=round(grace * 1000),
            days=days,
            top=top,
            master=reading.master,
            on_step=tell_step,
        )
    return end(reading, done, f"Delayed messages of {done.source}", _plots, PARTLY_DONE if done.is_stuck else DONE)


def _plots(done: DelayReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars, Line

    plots: list[Plot] = []
    times = done.due_by_time()
    begins = [name.partition(" … ")[0] for name, _ in times]
    plots.append(Bars("Due, from … (UTC) on", "messages", begins, {"messages": [count for _, count in times]}))
    for title, found in (("topic", done.topics[:_DRAWN]), ("level", done.levels)):
        ranks = {rank: [getattr(of, rank) for of in found] for rank in ("p50", "p90", "p99")}
        plots.append(Bars(f"Late by {title}", "ms", [of.name[:24] for of in found], ranks))
    if len(done.hours) > 1:
        at = list(range(len(done.hours)))
        curves = {rank: [getattr(of, rank) for of in done.hours] for rank in ("p50", "p99", "max")}
        plots.append(
            Line(
                f"Late by when it was due, from {done.hours[0].name} on",
                "ms",
                "hours in which something was due",
                at,
                curves,
            )
        )
    return plots
