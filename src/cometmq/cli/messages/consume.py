"""``cometmq consume``: receive messages to a terminal or a pipe, in a consumer group or without one."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from cometmq.cli.connection import demand_group_name, demand_topic_name, explained, namesrv_option, timeout_s
from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.format import PROPERTIES_TEMPLATE, Delimiter, Template, json_line, write
from cometmq.cli.messages.reading import EARLIEST, LATEST, Offset, Reading, read
from cometmq.cli.moments import PAST
from cometmq.cli.names import GROUP, TOPIC
from cometmq.cli.output import tell
from cometmq.cli.servers.process import Stopping, run_server
from cometmq.client.consumer.subscription import ALL, SQL92, TAG, subscription
from cometmq.client.errors import RemotingConnectError
from cometmq.clock import SYSTEM_CLOCK
from cometmq.message.message import MessageExt
from cometmq.quantity import quantity


@click.command("consume")
@click.argument("topic", type=TOPIC)
@click.option("--group", type=GROUP, help="Consume as a member of this group and commit its offsets.")
@click.option("--from-beginning", is_flag=True, help="Start at the first stored message (a group: if it is new).")
@click.option("--offset", type=Offset(), help="Start here in each queue: N, -N before the end, earliest, latest.")
@click.option("--since", type=PAST, help="Start at this time, or so long ago: 1h (a group: if it is new).")
@click.option("--until", type=PAST, help="Stop behind the last message stored at or before this time.")
@click.option("--last", type=click.IntRange(1), help="Write the last N messages and stop.")
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, help="Only this queue; repeatable.")
@click.option("--key", help="Only messages with this key.")
@click.option("--tag", default="*", show_default=True, help="Only these tags: 'paid || shipped'.")
@click.option("--sql", help="Only messages that match: \"region = 'eu' AND amount > 100\".")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many messages.")
@click.option("--trace", is_flag=True, help="With --group: trace each message.")
@click.option("--until-end", is_flag=True, help="Stop at the end of what is stored now.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["raw", "jsonl", "json"]),
    default="raw",
    show_default=True,
    help="raw: bodies, one a line; jsonl: whole messages, one JSON object a line.",
)
@click.option("--format", "template", help="Write each message so: '{stored} {keys} {properties[region]} {body}'.")
@click.option("--properties", is_flag=True, help="Write the properties before each body.")
@click.option(
    "--delimiter", type=Delimiter(), default="\\n", help="Text behind each message: \\n, \\0, '', …  [default: \\n]"
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
    """Receive the messages of TOPIC until interrupted.

    Without --group it reads every queue and changes nothing.
    """
    demand_topic_name(topic)
    if group is not None:
        demand_group_name(group)
        _demand_none_of("--group", offset=offset, until=until, last=last, queue=queues or None, key=key)
    if from_beginning and since is not None:
        raise WrongUseError("give only one of --from-beginning and --since")
    if offset is not None and (from_beginning or since is not None):
        raise WrongUseError("give only one of --offset, --from-beginning and --since")
    begins_at_end = not from_beginning and since is None and last is None and offset in (None, LATEST)
    if group is None and begins_at_end and (until_end or (until is not None and until <= SYSTEM_CLOCK.now_ms())):
        raise WrongUseError(
            f"{'--until-end' if until_end else '--until'} ends before anything is read: consume begins at the end of "
            "each queue (begin with --from-beginning, --since or --offset)"
        )
    if last is not None:
        _demand_none_of("--last", offset=offset, max=limit, from_beginning=from_beginning or None)
    if trace and group is None:
        raise WrongUseError("--trace traces the consumption of a group: name it with --group")
    if sql is not None and tag != ALL:
        raise WrongUseError("give only one of --tag and --sql")
    if sum((template is not None, properties, output != "raw")) > 1:
        raise WrongUseError("give only one of --format, --properties and -o jsonl")
    expression, expression_type = (tag, TAG) if sql is None else (sql, SQL92)
    try:
        subscription(topic, expression, expression_type, 0)
    except ValueError as error:
        raise WrongUseError(f"{'--tag' if sql is None else '--sql'} {expression}: {error}") from None
    if output == "raw":
        text = PROPERTIES_TEMPLATE if properties else "{body}" if template is None else template
        form: Callable[[MessageExt], bytes] = Template(text, escape=sys.stdout.isatty())
    else:
        form = json_line
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
        raise explained(error, namesrv) from error
    if sys.stderr.isatty() or not received:
        tell(f"Received {quantity(received, 'message')} of topic {topic}.")


def _demand_none_of(option: str, **others: object) -> None:
    """Check that no option was given that does not go with another one.

    :raises WrongUseError: one was.
    """
    for name, value in others.items():
        if value is not None:
            raise WrongUseError(f"--{name.replace('_', '-')} does not go with {option}")
