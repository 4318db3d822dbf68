"""``cometmq bench``: measure how many messages a cluster takes and gives, and how long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import click

from cometmq.bench.plan import MAX_COUNT, MAX_ROUND_TRIPS, STAMP, BenchError, Plan
from cometmq.bench.run import Kind, Target, run
from cometmq.cli.admin.bench_view import LiveView, show_outcome
from cometmq.cli.connection import demand_topic_name, explained, namesrv_option
from cometmq.cli.failures import DONE, FAILED, WrongUseError
from cometmq.cli.moments import Duration
from cometmq.cli.names import TOPIC
from cometmq.cli.output import output_option, tell
from cometmq.client.errors import RemotingConnectError
from cometmq.loop import fastest_loop

T = TypeVar("T")
MAX_BODY_BYTES: Final = 4 * 1024 * 1024
DEFAULT_SECONDS: Final = 10.0

_LENGTH: Final = (
    click.option("--count", type=click.IntRange(1, MAX_COUNT), help="So many messages."),
    click.option("--duration", type=Duration(), help="So long: 30s, 5m.  [default: 10s]"),
)
_LOAD: Final = (
    click.option("--size", type=click.IntRange(0, MAX_BODY_BYTES), default=1024, show_default=True, help="Bytes."),
    click.option("--rate", type=click.FloatRange(0, min_open=True), help="Messages a second; else all that go."),
    click.option(
        "--connections",
        type=click.IntRange(1, 1000),
        default=1,
        show_default=True,
        help="Clients with connections of their own.",
    ),
)
_SENT: Final = (
    click.option(
        "--in-flight",
        type=click.IntRange(1, 10_000),
        default=64,
        show_default=True,
        help="Requests without answer on each connection.",
    ),
    click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Messages in a request."),
    click.option("--queues", type=click.IntRange(1, 1024), default=8, show_default=True, help="Queues on each broker."),
    click.option("--into-existing", is_flag=True, help="Write into TOPIC although it exists."),
)


def _options(*options: Callable[..., Any]) -> Callable[[T], T]:
    def add(command: T) -> T:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group("bench")
def command() -> None:
    """Measure how many messages a cluster takes and gives, and how long that takes.

    Without TOPIC the load has a topic of its own, which is deleted at the end. The counts are checked at the end: a
    load that lost a message ends with 1. Works with Apache RocketMQ too.
    """


@command.command("produce")
@click.argument("topic", type=TOPIC, required=False)
@_options(*_LENGTH, *_LOAD, *_SENT)
@namesrv_option
@output_option
def produce(namesrv: str, output: str, **said: Any) -> int:
    """Send messages; measure the time until each is stored.

    With --rate a latency begins when the message was due, so that a broker that pauses is seen.
    """
    return _run(Kind.PRODUCE, said, namesrv, output)


@command.command("consume")
@click.argument("topic", type=TOPIC, required=False)
@_options(*_LENGTH, *_LOAD)
@namesrv_option
@output_option
def consume(namesrv: str, output: str, **said: Any) -> int:
    """Read messages; measure how many come.

    Those of TOPIC from its begin, or of a topic that is made and filled. No group is used: nothing is committed, and
    nobody's messages are taken.
    """
    if said["topic"] is not None and said["duration"] is None and said["count"] is None:
        said["count"] = MAX_COUNT
    return _run(Kind.CONSUME, said, namesrv, output)


@command.command("roundtrip")
@click.argument("topic", type=TOPIC, required=False)
@_options(*_LENGTH, *_LOAD, *_SENT)
@namesrv_option
@output_option
def roundtrip(namesrv: str, output: str, **said: Any) -> int:
    """Send and read; measure the whole way of messages.

    Without --rate the latency is mostly that of the queue that builds up.
    """
    if said["size"] < STAMP.size:
        raise WrongUseError(f"--size is at least {STAMP.size} here: number and time of the message")
    if (said["count"] or 0) > MAX_ROUND_TRIPS:
        raise WrongUseError(f"--count is at most {MAX_ROUND_TRIPS:,} here")
    return _run(Kind.ROUND_TRIP, said, namesrv, output)


def _run(kind: Kind, said: dict[str, Any], namesrv: str, output: str) -> int:
    topic: str | None = said.pop("topic")
    target = Target(topic, said.pop("queues", 8), said.pop("into_existing", False))
    duration: timedelta | None = said.pop("duration")
    if topic is not None:
        demand_topic_name(topic)
    if duration is not None and said["count"] is not None:
        raise WrongUseError("give only one of --count and --duration")
    if duration is not None and not duration:
        raise WrongUseError("--duration is more than 0")
    seconds = None if said["count"] is not None else duration.total_seconds() if duration else DEFAULT_SECONDS
    plan = Plan(topic=topic or "", seconds=seconds, **said)
    with LiveView(kind, plan) as view, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        try:
            outcome = runner.run(run(kind, plan, target, namesrv, view.look))
        except RemotingConnectError as error:
            raise explained(error, namesrv) from error
        except ExceptionGroup as group:
            raise BenchError(str(group.exceptions[0])) from group
    show_outcome(kind, outcome, output)
    for sentence in outcome.wrong:
        tell(f"cometmq: {sentence}")
    return FAILED if outcome.wrong else DONE
