"""``cometmq consume``: messages to a terminal or a pipe, as a member of a group or without one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import click

from cometmq.cli.administration import demand_group_name, demand_topic_name, explained, namesrv_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.moments import Moment
from cometmq.cli.output import tell
from cometmq.cli.process import Stopping, run_server
from cometmq.cli.rows import message_row
from cometmq.cli.visible import json_text, visible
from cometmq.client.consumer_config import ConsumeFromWhere, LitePullConfig
from cometmq.client.errors import RemotingConnectError
from cometmq.client.lite_pull_consumer import LitePullConsumer
from cometmq.client.subscription import ALL, SQL92, TAG, subscription
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.remoting.bodies import MessageQueue

POLL_SECONDS: Final = 1.0
"""How often --until-end looks whether it is there although nothing arrives."""


@dataclass(frozen=True)
class Wish:
    """What the user asked for."""

    topic: str
    group: str | None
    expression: str
    expression_type: str
    limit: int | None
    until_end: bool
    as_json: bool
    from_beginning: bool
    since_ms: int | None
    is_traced: bool


@click.command("consume")
@click.argument("topic")
@click.option("--group", help="Consume as a member of this group, and keep how far it is.")
@click.option("--from-beginning", is_flag=True, help="Start at the first message kept (a group: if it is new).")
@click.option("--since", type=Moment(), help="Start at this time (a group: if it is new).")
@click.option("--tag", default="*", show_default=True, help="Only these tags: 'paid || shipped'.")
@click.option("--sql", help="Only messages with such properties: \"region = 'eu' AND amount > 100\".")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--trace", is_flag=True, help="With --group: tell the trace topic of each message consumed.")
@click.option("--until-end", is_flag=True, help="Stop at what is stored now, instead of waiting for more.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["raw", "jsonl", "json"]),
    default="raw",
    show_default=True,
    help="raw: bodies, one a line; jsonl: all of each message as a line of JSON.",
)
@namesrv_option
def command(
    topic: str,
    group: str | None,
    from_beginning: bool,
    since: int | None,
    tag: str,
    sql: str | None,
    limit: int | None,
    trace: bool,
    until_end: bool,
    output: str,
    namesrv: str,
) -> None:
    """Receive the messages of TOPIC until interrupted.

    Without --group it looks on: it reads every queue and changes nothing.
    """
    demand_topic_name(topic)
    if group is not None:
        demand_group_name(group)
    if from_beginning and since is not None:
        raise WrongUseError("say one of --from-beginning and --since")
    if trace and group is None:
        raise WrongUseError("--trace tells of a group's consumption: name it with --group")
    if sql is not None and tag != ALL:
        raise WrongUseError("say one of --tag and --sql")
    expression, expression_type = (tag, TAG) if sql is None else (sql, SQL92)
    try:
        subscription(topic, expression, expression_type, 0)
    except ValueError as error:
        raise WrongUseError(f"{'--tag' if sql is None else '--sql'} {expression}: {error}") from None
    wish = Wish(
        topic, group, expression, expression_type, limit, until_end, output != "raw", from_beginning, since, trace
    )
    received = 0

    async def main(stopping: Stopping) -> None:
        nonlocal received
        received = await _consume(namesrv, wish, stopping)

    try:
        run_server(main)
    except RemotingConnectError as error:
        raise explained(error, namesrv) from error
    if sys.stderr.isatty() or not received:
        tell(f"Received {received:,} message{'' if received == 1 else 's'} of topic {topic}.")


async def _consume(namesrv: str, wish: Wish, stopping: Stopping) -> int:
    """Write messages to stdout until the wish is fulfilled or the process is asked to stop; return their number."""
    config = LitePullConfig(
        auto_commit=wish.group is not None,
        consume_from_where=_start_of_a_new_group(wish),
        consume_timestamp_ms=wish.since_ms or 0,
        enable_msg_trace=wish.is_traced,
    )
    received = 0
    async with LitePullConsumer(wish.group or TOOLS_GROUP, namesrv, config=config) as consumer:
        ends = {queue: await consumer.offsets.max(queue) for queue in await consumer.queues(wish.topic)}
        if wish.group is not None:
            await consumer.subscribe(wish.topic, wish.expression, expression_type=wish.expression_type)
        else:
            await _look_on(consumer, wish)
        stopped = asyncio.create_task(stopping.wait())
        while not stopping.requested and (wish.limit is None or received < wish.limit):
            wanted = None if wish.limit is None else min(config.max_poll_messages, wish.limit - received)
            polled = asyncio.create_task(consumer.poll(POLL_SECONDS, max_messages=wanted))
            await asyncio.wait((polled, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not polled.done():
                polled.cancel()
                await asyncio.gather(polled, return_exceptions=True)
                break
            messages = polled.result()
            if messages:
                await asyncio.to_thread(_write, messages, wish.as_json)
                received += len(messages)
            if wish.until_end and _at_end(consumer, ends):
                break
        stopped.cancel()
    return received


def _start_of_a_new_group(wish: Wish) -> ConsumeFromWhere:
    if wish.since_ms is not None:
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    if wish.from_beginning:
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET


async def _look_on(consumer: LitePullConsumer, wish: Wish) -> None:
    """Read every queue from where the user said, by default from its end."""
    queues = await consumer.queues(wish.topic)
    await consumer.assign(queues, wish.expression, expression_type=wish.expression_type)
    for queue in queues:
        if wish.since_ms is not None:
            await consumer.seek_to_time(queue, wish.since_ms)
        elif wish.from_beginning:
            await consumer.seek_to_begin(queue)
        else:
            await consumer.seek_to_end(queue)


def _at_end(consumer: LitePullConsumer, ends: Mapping[MessageQueue, int]) -> bool:
    """Whether all that was stored at the start in the queues of this member has been written."""
    mine = [queue for queue in consumer.assignment if queue in ends]
    return bool(mine) and all((consumer.position(queue) or 0) >= ends[queue] for queue in mine)


def _shown(body: bytes) -> bytes:
    """A body for a person; a pipe gets it as it is."""
    return visible(body.decode(errors="backslashreplace"), lines=True).encode()


def _write(messages: list[MessageExt], as_json: bool) -> None:
    if as_json:
        lines = [json_text(message_row(message)).encode() for message in messages]
    else:
        terminal = sys.stdout.isatty()
        lines = [_shown(message.body) if terminal else message.body for message in messages]
    sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
    sys.stdout.buffer.flush()
