"""``cometmq pipeline trace``: how long messages took from their producers to each consumer group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.failures import DONE, FAILED
from cometmq.cli.jobs.reading import Reading, end, reading_options, report_options, tell_step, wrong_use
from cometmq.cli.message_trace import rows_of, show_way
from cometmq.message.names import TRACE_TOPIC

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.trace_report import TraceReport

_DRAWN: Final = 12
"""Most pairs of topic and group in the plot of latencies."""


@click.command("trace")
@reading_options
@click.option("--trace-topic", default=TRACE_TOPIC, show_default=True, help="Where the clients' traces are.")
@click.option("--to", type=click.Path(path_type=Path, file_okay=False), help="Write the joined rows here, as Parquet.")
@click.option("--message", "message_id", metavar="ID", help="Show the way of this message too, by the client's id.")
@click.option("--top", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many slow consumers.")
@report_options
def command(
    reading: Reading,
    trace_topic: str,
    to: Path | None,
    message_id: str | None,
    top: int,
) -> int:
    """Join the clients' message traces: latencies by topic and group, slow consumers, the way of one message.

    Exit codes: 0 done; 1 failed, or nothing is told of the message asked for; 2 wrong use.
    """
    from cometmq.spark.trace import trace

    with wrong_use():
        done = trace(
            reading.source,
            trace_topic=trace_topic,
            to=to,
            message_id=message_id,
            top=top,
            master=reading.master,
            on_step=tell_step,
        )
    found = done.way is None or done.way.is_known
    code = end(reading, done, f"Message traces of {done.source}", _plots, DONE if found else FAILED)
    if not found:
        tell_step(f"{trace_topic} tells nothing of {message_id}")
    elif done.way is not None and reading.output == "table":
        show_way(done.way)
    return code


def _plots(done: TraceReport) -> list[Plot]:
    from cometmq.cli.job_report import Bars, Spans

    edges = [f"{least:,}" for least, _ in done.histogram]
    counts = {"messages": [count for _, count in done.histogram]}
    drawn = [of for of in done.latencies if of.p99 is not None][:_DRAWN]
    heights = {rank: [getattr(of, rank) for of in drawn] for rank in ("p50", "p90", "p99")}
    costs = {rank: [getattr(of, rank) for of in done.slow] for rank in ("p50", "p99")}
    plots: list[Plot] = [
        Bars("Sent to consumed, from … ms on", "messages", edges, counts),
        Bars("Latency by topic and group", "ms", [f"{of.topic}\n{of.group}" for of in drawn], heights),
        Bars("Slowest consumers", "ms of a call", [f"{of.group}\n{of.host}" for of in done.slow], costs),
    ]
    if done.way is not None and done.way.is_known:
        steps = [row for row in rows_of(done.way) if row["after_ms"] is not None]
        names = [f"{row['step']} {row['group']}" for row in steps]
        begins, lengths = [row["after_ms"] for row in steps], [row.get("took_ms") or 0 for row in steps]
        plots.append(Spans(f"The way of {done.way.msg_id}", "ms since it was sent", names, begins, lengths))
    return plots
