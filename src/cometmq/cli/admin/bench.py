"""``cometmq bench``: measure the throughput and latency of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from cometmq.bench.plan import MAX_COUNT, MAX_ROUND_TRIPS, STAMP, BenchError, Plan
from cometmq.bench.run import Kind, Target, run
from cometmq.cli.admin.bench_view import LiveView, show_outcome
from cometmq.cli.connection import demand_topic_name, explain_connect_error, namesrv_option
from cometmq.cli.failures import DONE, FAILED, WrongUseError
from cometmq.cli.moments import Duration
from cometmq.cli.names import TOPIC, TOPIC_TO_WRITE
from cometmq.cli.output import notify, output_option
from cometmq.client.errors import RemotingConnectError
from cometmq.loop import fastest_loop

T = TypeVar("T")
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
DEFAULT_SECONDS: Final = 10.0

_LENGTH: Final = (
    click.option("--count", type=click.IntRange(1, MAX_COUNT), help="Number of messages to send or read."),
    click.option("--duration", type=Duration(), help="Duration of the measurement, such as 30s or 5m.  [default: 10s]"),
)
_LOAD: Final = (
    click.option(
        "--size",
        type=click.IntRange(0, MAX_BODY_BYTES),
        default=1024,
        show_default=True,
        help="Size of each message body in bytes.",
    ),
    click.option(
        "--rate",
        type=click.FloatRange(0, min_open=True),
        help="Number of messages per second.  [default: as many as possible]",
    ),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Number of clients, each with its own connections.",
    ),
)
_SENT: Final = (
    click.option(
        "--in-flight",
        type=click.IntRange(1, 10_000),
        default=64,
        show_default=True,
        help="Maximum number of unanswered requests per connection.",
    ),
    click.option(
        "--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Number of messages per request."
    ),
    click.option(
        "--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Number of queues on each broker."
    ),
    click.option("--into-existing", is_flag=True, help="Write to TOPIC even if it exists."),
)


def _options(*options: Callable[..., Any]) -> Callable[[T], T]:
    def add(command: T) -> T:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group("bench")
def command() -> None:
    """Measure a cluster's throughput and latency.

    If no TOPIC is given, a temporary topic is used. The counts are compared at the end; the exit code is 1 if a message
    was lost. The commands also work with Apache RocketMQ.
    """


@command.command("produce")
@click.argument("topic", type=TOPIC_TO_WRITE, required=False)
@_options(*_LENGTH, *_LOAD, *_SENT)
@namesrv_option
@output_option
def produce(namesrv: str, output: str, **options: Any) -> int:
    """Send messages, and measure the time until each message is stored.

    With --rate, latency is measured from the time when a message is due, so it includes the broker's pauses.
    """
    return _run(Kind.PRODUCE, options, namesrv, output)


@command.command("consume")
@click.argument("topic", type=TOPIC, required=False)
@_options(*_LENGTH, *_LOAD)
@namesrv_option
@output_option
def consume(namesrv: str, output: str, **options: Any) -> int:
    """Read messages, and measure the throughput.

    Reads TOPIC from the beginning, or a temporary topic if no TOPIC is given. No group is used, so no offsets are
    committed and other consumers are not affected.
    """
    if options["topic"] is not None and options["duration"] is None and options["count"] is None:
        options["count"] = MAX_COUNT
    return _run(Kind.CONSUME, options, namesrv, output)


@command.command("roundtrip")
@click.argument("topic", type=TOPIC_TO_WRITE, required=False)
@_options(*_LENGTH, *_LOAD, *_SENT)
@namesrv_option
@output_option
def roundtrip(namesrv: str, output: str, **options: Any) -> int:
    """Send and read messages, and measure the end-to-end latency.

    If no --rate is given, messages queue up and most of the latency is waiting time.
    """
    if options["size"] < STAMP.size:
        raise WrongUseError(f"--size must be at least {STAMP.size}, to hold the message's number and time")
    if (options["count"] or 0) > MAX_ROUND_TRIPS:
        raise WrongUseError(f"--count must be at most {MAX_ROUND_TRIPS:,} for roundtrip")
    return _run(Kind.ROUND_TRIP, options, namesrv, output)


def _run(kind: Kind, options: dict[str, Any], namesrv: str, output: str) -> int:
    topic: str | None = options.pop("topic")
    target = Target(topic, options.pop("queues", 8), options.pop("into_existing", False))
    duration: timedelta | None = options.pop("duration")
    if topic is not None:
        demand_topic_name(topic)
    if duration is not None and options["count"] is not None:
        raise WrongUseError("give only one of --count and --duration")
    if duration is not None and not duration:
        raise WrongUseError("--duration must be more than 0")
    seconds = None if options["count"] is not None else duration.total_seconds() if duration else DEFAULT_SECONDS
    plan = Plan(topic=topic or "", seconds=seconds, **options)
    with LiveView(kind, plan) as view, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        try:
            outcome = runner.run(run(kind, plan, target, namesrv, view.show))
        except RemotingConnectError as error:
            raise explain_connect_error(error, namesrv) from error
        except ExceptionGroup as group:
            raise BenchError(str(group.exceptions[0])) from group
    show_outcome(kind, outcome, output)
    for sentence in outcome.errors:
        notify(f"cometmq: {sentence}")
    return FAILED if outcome.errors else DONE
