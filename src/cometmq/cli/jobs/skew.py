"""``cometmq pipeline skew``: hot keys, and queues that hold more than others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cometmq.cli.jobs.reading import Reading, end, reading_options, report_options, tell_step, wrong_use
from cometmq.spark.queue_balance import HANDLED_PER_S
from cometmq.spark.skew_report import BY, TOP

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.skew_report import SkewReport


@click.command("skew")
@reading_options
@click.option("--topic", "topics", multiple=True, required=True, help="A topic; may be given several times.")
@click.option("--by", type=click.Choice(BY), default=BY[0], show_default=True, help="What counts as a message's key.")
@click.option("--top", type=click.IntRange(1, 10_000), default=TOP, show_default=True, help="How many hot keys.")
@click.option("--consumers", type=click.IntRange(1), default=1, show_default=True, help="Consumers of a group.")
@click.option(
    "--handled",
    type=click.FloatRange(0, min_open=True),
    default=HANDLED_PER_S,
    show_default=True,
    help="Messages a second that a consumer gets through of one queue.",
)
@report_options
def command(
    reading: Reading,
    topics: tuple[str, ...],
    by: str,
    top: int,
    consumers: int,
    handled: float,
) -> int:
    """Show hot keys, how unevenly queues are filled, and how many queues topics should have.

    Exit codes: 0 done; 1 failed; 2 wrong use.
    """
    from cometmq.spark.skew import skew

    with wrong_use():
        done = skew(
            reading.source,
            topics,
            by=by,
            consumers=consumers,
            handled_per_s=handled,
            top=top,
            master=reading.master,
            on_step=tell_step,
        )
    return end(reading, done, f"Skew of {', '.join(topics)}", _plots)


def _plots(done: SkewReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars

    plots: list[Plot] = []
    for of in done.topics:
        names = [f"{queue.broker} {queue.queue_id}" for queue in of.queues]
        plots.append(
            Bars(f"Queues of {of.topic}", "messages", names, {"messages": [one.messages for one in of.queues]})
        )
    names = [hot.key[:24] for hot in done.hot_keys[:20]]
    shares = {"share of the topic, %": [100 * hot.share for hot in done.hot_keys[:20]]}
    plots.append(Bars(f"Hot {done.by}", "% of the topic", names, shares))
    return plots
