"""``cometmq consume``: receive messages with or without a consumer group."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from cometmq.cli.connection import (
    demand_group_name,
    demand_topic_name,
    explain_connect_error,
    namesrv_option,
    timeout_s,
)
from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.format import PROPERTIES_TEMPLATE, Delimiter, Template, json_line, write
from cometmq.cli.messages.reading import EARLIEST, LATEST, Offset, Reading, read
from cometmq.cli.moments import PAST
from cometmq.cli.names import GROUP, TOPIC
from cometmq.cli.output import notify
from cometmq.cli.servers.process import Stopping, run_server
from cometmq.client.consumer.subscription import ALL, SQL92, TAG, subscription
from cometmq.client.errors import RemotingConnectError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.quantity import quantity


@click.command("consume")
@click.argument("topic", type=TOPIC)
@click.option("--group", type=GROUP, help="Consume as a member of this group, and commit offsets.")
@click.option(
    "--from-beginning", is_flag=True, help="Start at the first stored message; with --group, only if the group is new."
)
@click.option(
    "--offset",
    type=Offset(),
    help="Start at this offset in each queue: N, -N (N messages before the end), earliest or latest.",
)
@click.option(
    "--since",
    type=PAST,
    help="Start at this time, or this long ago, such as 1h; with --group, only if the group is new.",
)
@click.option("--until", type=PAST, help="Stop after the last message stored at or before this time.")
@click.option("--last", type=click.IntRange(1), help="Write the last N messages and stop.")
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, help="Read only this queue. May be repeated.")
@click.option("--key", help="Receive only messages with this key.")
@click.option(
    "--tag", default="*", show_default=True, help="Receive only messages with these tags, such as 'paid || shipped'."
)
@click.option(
    "--sql", help="Receive only messages that match this SQL92 expression: \"region = 'eu' AND amount > 100\"."
)
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after N messages.")
@click.option("--trace", is_flag=True, help="Trace each message (with --group).")
@click.option(
    "--until-end", is_flag=True, help="Stop after the last message that was already stored when the command started."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["raw", "jsonl", "json"]),
    default="raw",
    show_default=True,
    help="Output format: raw for one body per line; jsonl for complete messages, one JSON object per line.",
)
@click.option(
    "--format", "template", help="Template for each message, such as '{stored} {keys} {properties[region]} {body}'."
)
@click.option("--properties", is_flag=True, help="Write each message's properties before its body.")
@click.option(
    "--delimiter",
    type=Delimiter(),
    default="\\n",
    help="Text to write after each message: \\n, \\0, '', …  [default: \\n]",
)
@namesrv_option
def command(
    topic: str,
    group: str | None,
    from_beginning: bool,
    offset: int | str | None,
    since: int | None,
    until: int | None,
    last: int | None,
    queues: tuple[int, ...],
    key: str | None,
    tag: str,
    sql: str | None,
    limit: int | None,
    trace: bool,
    until_end: bool,
    output: str,
    template: str | None,
    properties: bool,
    delimiter: bytes,
    namesrv: str,
) -> None:
    """Receive messages from TOPIC until interrupted.

    If no --group is given, all queues are read and no offsets are committed.
    """
    demand_topic_name(topic)
    if group is not None:
        demand_group_name(group)
        _demand_none_of("--group", offset=offset, until=until, last=last, queue=queues or None, key=key)
    _demand_one_start(from_beginning, since, offset)
    begins_at_end = not from_beginning and since is None and last is None and offset in (None, LATEST)
    if group is None and begins_at_end and (until_end or (until is not None and until <= SYSTEM_CLOCK.now_ms())):
        raise WrongUseError(
            f"{'--until-end' if until_end else '--until'} would end before any message is read: "
            "consume starts at the end of each queue (start with --from-beginning, --since or --offset)"
        )
    if last is not None:
        _demand_none_of("--last", offset=offset, max=limit, from_beginning=from_beginning or None)
    if trace and group is None:
        raise WrongUseError("--trace requires a group: give one with --group")
    expression, expression_type = _filter(topic, tag, sql)
    form = _form(output, template, properties)
    if form is json_line:
        delimiter = b"\n"
    reading = Reading(
        topic=topic,
        group=group,
        expression=expression,
        expression_type=expression_type,
        queues=queues,
        offset=offset if offset is not None else EARLIEST if from_beginning else LATEST,
        since_ms=since,
        until_ms=until,
        key=key,
        last=last,
        limit=limit,
        until_end=until_end,
        is_traced=trace,
        timeout_s=timeout_s(),
    )
    received = 0

    def write_all(messages: list[MessageExt]) -> None:
        write(messages, form, delimiter)

    async def main(stopping: Stopping) -> None:
        nonlocal received
        received = await read(namesrv, reading, stopping, write_all)

    try:
        run_server(main, is_server=False)
    except RemotingConnectError as error:
        raise explain_connect_error(error, namesrv) from error
    if sys.stderr.isatty() or not received:
        notify(f"Received {quantity(received, 'message')} of topic {topic}.")


def _demand_one_start(from_beginning: bool, since: int | None, offset: int | str | None) -> None:
    if from_beginning and since is not None:
        raise WrongUseError("give only one of --from-beginning and --since")
    if offset is not None and (from_beginning or since is not None):
        raise WrongUseError("give only one of --offset, --from-beginning and --since")


def _filter(topic: str, tag: str, sql: str | None) -> tuple[str, str]:
    """Check the filter, and return its expression and type."""
    if sql is not None and tag != ALL:
        raise WrongUseError("give only one of --tag and --sql")
    expression, expression_type = (tag, TAG) if sql is None else (sql, SQL92)
    try:
        subscription(topic, expression, expression_type, 0)
    except ValueError as error:
        raise WrongUseError(f"{'--tag' if sql is None else '--sql'} {expression}: {error}") from None
    return expression, expression_type


def _form(output: str, template: str | None, properties: bool) -> Callable[[MessageExt], bytes]:
    """Return the function that formats a message for the given options."""
    if sum((template is not None, properties, output != "raw")) > 1:
        raise WrongUseError("give only one of --format, --properties and -o jsonl")
    if output != "raw":
        return json_line
    text = PROPERTIES_TEMPLATE if properties else "{body}" if template is None else template
    return Template(text, escape=sys.stdout.isatty())


def _demand_none_of(option: str, **others: object) -> None:
    """Check that no given option contradicts ``option``.

    :raises WrongUseError: a contradicting option was given.
    """
    for name, value in others.items():
        if value is not None:
            raise WrongUseError(f"--{name.replace('_', '-')} cannot be used with {option}")
