"""``cometmq produce``: sends lines of stdin or a file, one message, or a load."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final

import click

from cometmq.cli.administration import demand_group_name, demand_topic_name, explained, namesrv_option
from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.moments import EPOCH, Duration, Moment
from cometmq.cli.output import Column, output_option, show, tell
from cometmq.cli.progress import Progress
from cometmq.cli.sources import MessageForm, Pacer, from_lines, from_load
from cometmq.client.errors import RemotingConnectError
from cometmq.client.outcomes import PartlySentError
from cometmq.client.producer import Producer
from cometmq.client.producer_config import ProducerConfig
from cometmq.client.selectors import by_sharding_key
from cometmq.client.send_result import SendResult
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.loop import fastest_loop
from cometmq.message.message import Message

PRODUCER_GROUP: Final = "cometmq-produce"
CALLS_IN_FLIGHT: Final = 16
"""Batches that wait for their answers; keeps the broker busy while the next ones are made."""

_SENT: Final = (
    Column("topic", "Topic"),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("queue_offset", "Offset", right=True),
    Column("msg_id", "Id"),
    Column("offset_msg_id", "Offset id"),
    Column("status", "Status"),
)


@click.command("produce")
@click.argument("topic")
@click.option("--body", help="Send this one text; otherwise each line of --file or stdin is a message.")
@click.option(
    "--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read lines from here."
)
@click.option("--json", "as_json", is_flag=True, help='Lines are {"body", "tags", "keys", "properties"} objects.')
@click.option("--tag", help="Tag of every message.")
@click.option("--key", "keys", multiple=True, help="Key of every message; repeatable.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="Property; repeatable.")
@click.option("--sharding-key", help="Send all to the queue that this text stands for, in order.")
@click.option("--delay", type=Duration(), help="Deliver so long after they were sent: 90s, 1h30m, 2d, 500ms.")
@click.option("--deliver-at", type=Moment(), help="Deliver at this time.")
@click.option("--delay-level", type=click.IntRange(1), help="Deliver after this level of messageDelayLevel.")
@click.option("--count", type=click.IntRange(1), help="Send a load of so many made-up messages.")
@click.option(
    "--size", type=click.IntRange(0, 4 * 1024 * 1024), default=128, show_default=True, help="Bytes of each of them."
)
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many messages a second.")
@click.option(
    "--batch", type=click.IntRange(1, 10_000), default=128, show_default=True, help="Messages in one request."
)
@click.option("--group", default=PRODUCER_GROUP, show_default=True, help="Producer group.")
@click.option("--trace", is_flag=True, help="Tell the trace topic of each message: see cometmq message trace.")
@namesrv_option
@output_option
def command(
    topic: str,
    body: str | None,
    path: Path | None,
    as_json: bool,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    sharding_key: str | None,
    delay: timedelta | None,
    deliver_at: int | None,
    delay_level: int | None,
    count: int | None,
    size: int,
    rate: float | None,
    batch: int,
    group: str,
    trace: bool,
    namesrv: str,
    output: str,
) -> None:
    """Send messages to TOPIC: one --body, the lines of --file or stdin, or a load of --count messages.

    Says on stderr what was sent; -o json, jsonl or csv lists where every message is stored.
    """
    demand_topic_name(topic)
    demand_group_name(group)
    if sum(given is not None for given in (body, path, count)) > 1:
        raise WrongUseError("say one of --body, --file and --count")
    if sum(given is not None for given in (delay, deliver_at, delay_level)) > 1:
        raise WrongUseError("say one of --delay, --deliver-at and --delay-level")
    try:
        due = None if deliver_at is None else EPOCH + timedelta(milliseconds=deliver_at)
    except OverflowError:
        raise WrongUseError(f"--deliver-at {deliver_at} is after the year 9999") from None
    form = MessageForm(topic, tag, keys, _pairs(properties), as_json, delay_level or 0, delay, due)
    pacer = Pacer(rate, SYSTEM_CLOCK)
    if count is not None:
        source = from_load(form, count, size, batch, pacer)
    elif body is not None:
        source = _once(form.message(body.encode()))
    else:
        if path is None and sys.stdin.isatty():
            tell("Type messages, one a line; Ctrl-D ends.")
        source = from_lines(form, _opened(path), batch, pacer)
    keep = output != "table" or body is not None
    sent = Sent(keep=keep, started=SYSTEM_CLOCK.monotonic())
    with Progress("Sending", count) as progress, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_send_all(group, trace, namesrv, source, sharding_key, batch, sent, progress))
    if sent.rows:
        show(sent.rows, _SENT, output)
    if sent.count and not (body is not None and output == "table"):
        tell(sent.summary(topic, SYSTEM_CLOCK.monotonic()))
    if sent.failure is not None:
        raise sent.failure_of_all(namesrv)


@dataclass
class Sent:
    """What became of the messages so far."""

    keep: bool
    started: float
    count: int = 0
    body_bytes: int = 0
    failed: int = 0
    failure: BaseException | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, messages: list[Message], outcomes: tuple[SendResult | BaseException, ...]) -> None:
        """Count one call's outcomes."""
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self.failed += 1
                self.failure = self.failure or outcome
                continue
            self.count += 1
            self.body_bytes += len(message.body)
            if self.keep:
                self.rows.append(_row(outcome))

    def failure_of_all(self, namesrv: str) -> BaseException:
        """What the command ends with: the failure itself, or how much was done before it."""
        assert self.failure is not None
        cause = self.failure
        if isinstance(cause, RemotingConnectError):
            cause = explained(cause, namesrv)
        if not self.count:
            return cause
        return PartlyDoneError(f"{self.failed} messages were not sent after {self.count} were: {cause}")

    def summary(self, topic: str, now: float) -> str:
        """One sentence for people."""
        seconds = max(now - self.started, 1e-9)
        plural = "" if self.count == 1 else "s"
        return (
            f"Sent {self.count:,} message{plural} ({_size(self.body_bytes)}) to topic {topic} "
            f"in {seconds:.2f} s: {self.count / seconds:,.0f}/s."
        )


def _size(count: int) -> str:
    """Bytes in the unit that people would say them in."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:,.1f} {unit}"
    return f"{count} bytes" if count != 1 else "1 byte"


async def _send_all(
    group: str,
    trace: bool,
    namesrv: str,
    source: AsyncGenerator[list[Message]],
    sharding_key: str | None,
    batch: int,
    sent: Sent,
    progress: Progress,
) -> None:
    """Send every list that the source gives, several calls at once, results in order."""
    calls: deque[tuple[list[Message], asyncio.Task[tuple[SendResult | BaseException, ...]]]] = deque()

    async def settle_one() -> None:
        messages, call = calls.popleft()
        sent.add(messages, await call)
        progress.advance(len(messages))

    config = ProducerConfig(enable_msg_trace=trace)
    async with Producer(group, namesrv, config=config) as producer, aclosing(source) as lists:
        async for messages in lists:
            call = asyncio.create_task(_send(producer, messages, sharding_key, one_by_one=batch == 1))
            calls.append((messages, call))
            # The first call opens the connection; after it, calls leave in the order in which they are made.
            limit = 1 if sharding_key is not None or not sent.count else CALLS_IN_FLIGHT
            while calls and (len(calls) >= limit or calls[0][1].done()):
                await settle_one()
            if sent.failed:
                break
            await asyncio.sleep(0)
        while calls:
            await settle_one()


async def _send(
    producer: Producer, messages: list[Message], sharding_key: str | None, *, one_by_one: bool
) -> tuple[SendResult | BaseException, ...]:
    selector = by_sharding_key(sharding_key) if sharding_key is not None else None
    try:
        if len(messages) == 1:
            return (await producer.send(messages[0], selector=selector),)
        if one_by_one:
            return tuple(await producer.send_many(messages, selector=selector))
        return tuple(await producer.send_batch(messages, sharding_key=sharding_key))
    except PartlySentError as error:
        return error.outcomes
    except CometMQError as error:
        return (error,) * len(messages)


def _row(result: SendResult) -> dict[str, Any]:
    return {
        "topic": result.queue.topic,
        "broker": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "queue_offset": result.queue_offset,
        "msg_id": result.msg_id,
        "offset_msg_id": result.offset_msg_id,
        "status": result.status.value,
    }


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise WrongUseError(f"--property {text}: write it as name=value")
        pairs[name] = value
    return pairs


def _opened(path: Path | None) -> IO[bytes]:
    return sys.stdin.buffer if path is None else path.open("rb")


async def _once(message: Message) -> AsyncGenerator[list[Message]]:
    yield [message]
