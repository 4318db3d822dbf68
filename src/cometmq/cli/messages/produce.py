"""``cometmq produce``: send a single message, lines from stdin or files, or generated messages."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

import click

from cometmq.cli.connection import demand_group_name, demand_topic_name, namesrv_option, timeout_s
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.messages.format import Delimiter
from cometmq.cli.messages.json_line import Delays
from cometmq.cli.messages.sending import Sent, send_all
from cometmq.cli.messages.sources import MessageForm, Pacer, generate_load, read_lines, read_whole_files
from cometmq.cli.moments import EPOCH, Duration, Moment
from cometmq.cli.names import TOPIC_TO_WRITE
from cometmq.cli.output import Column, Progress, notify, output_option, show
from cometmq.client.producer.producer import Producer
from cometmq.client.send.config import ProducerConfig
from cometmq.clock import SYSTEM_CLOCK
from cometmq.limits import MAX_TTL_MS
from cometmq.loop import fastest_loop
from cometmq.message.message import Message
from cometmq.message.properties import PRIORITY_MAX, SHARDING_KEY, TTL_MS

PRODUCER_GROUP: Final = "cometmq-produce"

_SENT: Final = (
    Column("topic", "Topic", topics=True),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("queue_offset", "Offset", right=True),
    Column("msg_id", "Id"),
    Column("offset_msg_id", "Offset id"),
    Column("status", "Status"),
)


@click.command("produce")
@click.argument("topic", type=TOPIC_TO_WRITE)
@click.option("--body", help="Send this text.  [default: each line of --file or stdin]")
@click.option(
    "--file",
    "paths",
    multiple=True,
    type=LocalPath(exists=True, dir_okay=False, path_type=Path),
    help="Read lines from this file. May be repeated.",
)
@click.option("--whole", is_flag=True, help="Send each file, or all of stdin, as one message.")
@click.option(
    "--delimiter",
    type=Delimiter(),
    default="\\n",
    help="Text that separates messages: \\n, \\0, ';', …  [default: \\n]",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Read each line as a JSON object, as written by consume -o jsonl."
)
@click.option("--tag", help="Tag for every message.")
@click.option("--key", "keys", multiple=True, help="Key for every message. May be repeated.")
@click.option(
    "--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property for every message. May be repeated."
)
@click.option("--sharding-key", help="Send all messages in order to the queue selected by this key.")
@click.option(
    "--priority",
    type=click.IntRange(0, PRIORITY_MAX),
    help="Priority of every message, for topics of type PRIORITY. Larger numbers are more urgent.",
)
@click.option("--delay", type=Duration(), help="Deliver after this delay, such as 90s, 1h30m, 2d or 500ms.")
@click.option("--deliver-at", type=Moment(), help="Deliver each message at this time.")
@click.option("--delay-level", type=click.IntRange(1), help="Deliver after this delay level (messageDelayLevel).")
@click.option("--ttl", type=Duration(), help="Deliver each message only for this time, such as 90s, 1h30m or 2d.")
@click.option("--count", type=click.IntRange(1), help="Generate and send N messages.")
@click.option(
    "--size",
    type=click.IntRange(0, 4 * 1024 * 1024),
    default=128,
    show_default=True,
    help="Size of each generated message in bytes.",
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of messages per second.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=128, show_default=True, help="Number of messages per request."
)
@click.option("--group", default=PRODUCER_GROUP, show_default=True, help="Producer group to send as.")
@click.option("--trace", is_flag=True, help="Trace each message (see cometmq message trace).")
@namesrv_option
@output_option
def command(
    topic: str,
    body: str | None,
    paths: tuple[Path, ...],
    whole: bool,
    delimiter: bytes,
    as_json: bool,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    priority: int | None,
    delay: timedelta | None,
    deliver_at: int | None,
    delay_level: int | None,
    ttl: timedelta | None,
    count: int | None,
    size: int,
    rate: float | None,
    batch: int,
    group: str,
    trace: bool,
    namesrv: str,
    output: str,
) -> None:
    """Send messages to TOPIC: one --body, the lines of --file or stdin, or --count generated messages.

    A summary is written to stderr. With -o json, jsonl or csv, the position of each stored message is written to
    stdout.
    """
    demand_topic_name(topic)
    demand_group_name(group)
    if (body is not None) + (count is not None) + bool(paths) > 1:
        raise WrongUseError("give only one of --body, --file and --count")
    delays = _delays(delay, deliver_at, delay_level)
    shared = _pairs(properties) | ({} if sharding_key is None else {SHARDING_KEY: sharding_key})
    if ttl is not None:
        shared[TTL_MS] = _life_time(ttl)
    if priority is not None and sharding_key is not None:
        raise WrongUseError("give only one of --priority and --sharding-key: each of them chooses the queue")
    form = MessageForm(topic, tag, keys, shared, as_json, delays, priority)
    pacer = Pacer(rate, SYSTEM_CLOCK)
    with ExitStack() as files:
        if count is not None:
            source = generate_load(form, count, size, batch, pacer)
        elif body is not None:
            source = _once(form.parse(body.encode(errors="surrogateescape"), 1))
        else:
            if not paths and sys.stdin.isatty():
                notify("Type one message per line; press Ctrl-D to finish.")
            streams: list[IO[bytes]] = [files.enter_context(path.open("rb")) for path in paths] or [sys.stdin.buffer]
            if whole:
                source = read_whole_files(form, streams, pacer)
            else:
                source = read_lines(form, streams, batch, pacer, delimiter)
        keep = output != "table" or body is not None
        sent = Sent(keep=keep, started=SYSTEM_CLOCK.monotonic())

        config = ProducerConfig(enable_msg_trace=trace)
        if (seconds := timeout_s()) is not None:
            config = replace(config, send_timeout_s=seconds)

        async def work(progress: Progress) -> None:
            producer = Producer(group, namesrv, config=config)
            await send_all(producer, topic, source, sent, progress, one_by_one=batch == 1)

        with Progress("Sending", count) as progress, asyncio.Runner(loop_factory=fastest_loop()) as runner:
            runner.run(work(progress))
    if sent.rows:
        show(sent.rows, _SENT, output)
    if sent.count and not (body is not None and output == "table"):
        notify(sent.summary(topic, SYSTEM_CLOCK.monotonic()))
    if sent.failure is not None:
        raise sent.failure_of_all(namesrv)


def _delays(delay: timedelta | None, deliver_at: int | None, delay_level: int | None) -> Delays:
    if sum(given is not None for given in (delay, deliver_at, delay_level)) > 1:
        raise WrongUseError("give only one of --delay, --deliver-at and --delay-level")
    try:
        due = None if deliver_at is None else EPOCH + timedelta(milliseconds=deliver_at)
    except OverflowError:
        raise WrongUseError(f"--deliver-at {deliver_at} is after the year 9999") from None
    return Delays(delay_level or 0, delay, due)


def _life_time(ttl: timedelta) -> str:
    milliseconds = ttl // timedelta(milliseconds=1)
    if not 1 <= milliseconds <= MAX_TTL_MS:
        raise WrongUseError("--ttl: use a time from 1ms to 3650d")
    return str(milliseconds)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not value:
            missing = "" if not equals or not name else "; a property without a value is not stored"
            raise WrongUseError(f"--property {text}: write it as name=value{missing}")
        if pairs.setdefault(name, value) != value:
            raise WrongUseError(f"--property {text}: {name} already has the value {pairs[name]}")
    return pairs


async def _once(message: Message) -> AsyncGenerator[list[Message]]:
    yield [message]
