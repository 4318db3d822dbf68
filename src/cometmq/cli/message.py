"""``cometmq message``: find stored messages by id, by key, or by their place in a queue."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from cometmq.cli.administration import administer, namesrv_option
from cometmq.cli.failures import WrongUseError
from cometmq.cli.message_trace import trace
from cometmq.cli.moments import Moment
from cometmq.cli.output import Column, output_option, show, show_one
from cometmq.cli.rows import message_row
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.errors import BrokerError, RemotingConnectError
from cometmq.client.pull_consumer import PullConsumer
from cometmq.client.pulling import PullStatus
from cometmq.errors import CometMQError
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.quantity import quantity
from cometmq.remoting.codes import ResponseCode

_FOUND: Final = (
    Column("stored", "Stored", time=True),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("queue_offset", "Offset", right=True),
    Column("tags", "Tag"),
    Column("keys", "Keys"),
    Column("msg_id", "Id"),
    Column("body", "Body", prose=True),
)

_raw_option = click.option("--raw", is_flag=True, help="Write the body only, as it is.")


class NotFoundError(CometMQError):
    """No stored message fits."""


@click.group("message")
def command() -> None:
    """Find stored messages by id, key or offset."""


@command.command("get")
@click.argument("message_id", metavar="ID")
@click.option("--topic", help="The topic; needed for the id that a client gave (its unique key).")
@_raw_option
@namesrv_option
@output_option
def get(message_id: str, topic: str | None, raw: bool, namesrv: str, output: str) -> None:
    """Show one message by its id.

    ID is the broker's (offset id), which names broker and place, or with --topic the client's.
    """

    async def work(admin: Admin) -> MessageExt:
        try:
            return await admin.message_by_id(message_id, topic)
        except ValueError:
            if topic is None:
                raise WrongUseError(f"{message_id} is no offset id", next_step="name the topic with --topic") from None
        except BrokerError as error:
            if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise
        except RemotingConnectError:
            if topic is None:
                raise
        where = f"topic {topic} has" if topic is not None else "the broker has"
        raise NotFoundError(f"{where} no message {message_id}", next_step="check the id; the message may have expired")

    _show_message(administer(namesrv, work), raw, output)


@command.command("query")
@click.option("--topic", required=True, help="The topic.")
@click.option("--key", required=True, help="One of the keys that the producer gave.")
@click.option("--since", "--begin", "begin", type=Moment(), default=0, help="Not stored before this time.")
@click.option("--until", "--end", "end", type=Moment(), help="Not stored after this time.")
@click.option(
    "--limit",
    "--max",
    "limit",
    type=click.IntRange(1, MAX_QUERY_MESSAGES),
    default=32,
    show_default=True,
    help="At most so many.",
)
@namesrv_option
@output_option
def query(topic: str, key: str, begin: int, end: int | None, limit: int, namesrv: str, output: str) -> None:
    """Find messages by key, in the order they were stored."""
    last = END_OF_TIME_MS if end is None else end

    async def work(admin: Admin) -> list[MessageExt]:
        return await admin.query_message(topic, key, max_messages=limit, begin_ms=begin, end_ms=last)

    found = administer(namesrv, work)
    if not found and output == "table":
        raise NotFoundError(f"topic {topic} has no message with key {key}", next_step="it may have expired")
    show_found(found, key, output)


def show_found(found: Sequence[MessageExt], key: str, output: str) -> None:
    """Write the messages that a look-up by key has found."""
    rows = [message_row(message) for message in found]
    columns = _FOUND if output == "table" else tuple(Column(key, key) for key in (rows[0] if rows else {}))
    show(rows, columns, output, title=f"Messages with key {key}")


@command.command("at")
@click.option("--topic", required=True, help="The topic.")
@click.option("--broker", help="Name of the broker; needed when the topic has several.")
@click.option("--queue", type=click.IntRange(0), required=True, help="Number of the queue.")
@click.option("--offset", type=click.IntRange(0), required=True, help="Place in that queue.")
@_raw_option
@namesrv_option
@output_option
def at(topic: str, broker: str | None, queue: int, offset: int, raw: bool, namesrv: str, output: str) -> None:
    """Show the message at one place of a queue."""

    async def work(admin: Admin) -> MessageExt:
        chosen = [
            found
            for found in await admin.queues(topic)
            if found.queue_id == queue and broker in (None, found.broker_name)
        ]
        if len(chosen) != 1:
            brokers = sorted({found.broker_name for found in await admin.queues(topic)})
            raise WrongUseError(
                f"topic {topic} has {quantity(len(chosen), 'queue')} with number {queue}",
                next_step=f"name one of its brokers with --broker: {', '.join(brokers)}",
            )
        consumer = PullConsumer(TOOLS_GROUP, instance=admin.instance)
        async with consumer:
            result = await consumer.pull(chosen[0], offset, 1)
        if result.status is not PullStatus.FOUND:
            raise NotFoundError(
                f"queue {queue} of topic {topic} has no message at offset {offset}",
                next_step=f"it has {result.min_offset} to {result.max_offset - 1}; see cometmq topic stats {topic}",
            )
        return result.messages[0]

    _show_message(administer(namesrv, work), raw, output)


command.add_command(trace)


def _show_message(message: MessageExt, raw: bool, output: str) -> None:
    if raw:
        sys.stdout.buffer.write(message.body)
        return
    row: dict[str, Any] = message_row(message)
    show_one(row, output, title=f"Message {message.msg_id}")
