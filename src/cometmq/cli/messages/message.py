"""``cometmq message``: find stored messages by id, by key, or by queue and offset."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from cometmq.cli.connection import administer, namesrv_option, survey
from cometmq.cli.failures import WrongUseError
from cometmq.cli.messages.trace import trace
from cometmq.cli.messages.why import why
from cometmq.cli.moments import PAST, local_time
from cometmq.cli.names import BROKER, TOPIC
from cometmq.cli.output import Column, output_option, show, show_one
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.consumer.pull_consumer import PullConsumer
from cometmq.client.consumer.pulling import PullStatus
from cometmq.client.errors import BrokerError, RemotingConnectError, UnknownBrokerError
from cometmq.errors import CometMQError
from cometmq.limits import MAX_QUERY_MESSAGES
from cometmq.message.message import MessageExt
from cometmq.message.names import TOOLS_GROUP
from cometmq.message.properties import KEYS, PRIORITY, TAGS, UNIQ_KEY
from cometmq.quantity import quantity
from cometmq.remoting.codes import ResponseCode

MESSAGE_FIELDS: Final = (
    "topic",
    "broker",
    "queue_id",
    "queue_offset",
    "tags",
    "keys",
    "msg_id",
    "offset_msg_id",
    "born",
    "born_host",
    "stored",
    "store_host",
    "reconsume_times",
    "flag",
    "priority",
    "properties",
    "expires",
    "body",
)
"""Fields of a message in the output, in order."""


def message_row(message: MessageExt) -> dict[str, Any]:
    """Return a message as an output row. A body that is not UTF-8 becomes ``body_base64``; the field ``expires`` stands
    only in messages with a life time.
    """
    shown = {name: value for name, value in message.properties.items() if name not in (KEYS, TAGS, UNIQ_KEY)}
    priority = message.priority
    if priority is not None:
        del shown[PRIORITY]
    row: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker_name or None,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "tags": message.tags,
        "keys": list(message.keys),
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "born": local_time(message.born_timestamp),
        "born_host": message.born_host,
        "stored": local_time(message.store_timestamp),
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "flag": message.flag,
        **({} if priority is None else {"priority": priority}),
        "properties": shown,
    }
    if message.expires_at is not None:
        row["expires"] = local_time(round(message.expires_at.timestamp() * 1000))
    try:
        row["body"] = message.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(message.body).decode()
    return row


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

_raw_option = click.option("--raw", is_flag=True, help="Write only the raw body.")


class NotFoundError(CometMQError):
    """The message does not exist."""


@click.group("message")
def command() -> None:
    """Find stored messages by id, key or offset."""


@command.command("get")
@click.argument("message_id", metavar="ID")
@click.option("--topic", type=TOPIC, help="Topic of the message; required if ID is the client's unique key.")
@_raw_option
@namesrv_option
@output_option
def get(message_id: str, topic: str | None, raw: bool, namesrv: str, output: str) -> None:
    """Show one message by its id.

    ID is the broker's offset id or, with --topic, the client's unique key.
    """

    async def work(admin: Admin) -> MessageExt:
        try:
            return await admin.message_by_id(message_id, topic)
        except ValueError:
            if topic is None:
                raise WrongUseError(
                    f"{message_id} is not an offset id", next_step="add the topic with --topic"
                ) from None
        except BrokerError as error:
            if error.code not in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise
        except (RemotingConnectError, UnknownBrokerError):
            if topic is None:
                raise
        where = f"topic {topic} has" if topic is not None else "the broker has"
        raise NotFoundError(f"{where} no message {message_id}", next_step="check the id; the message may have expired")

    _show_message(administer(namesrv, work), raw, output)


@command.command("query")
@click.option("--topic", type=TOPIC, required=True, help="The topic.")
@click.option("--key", required=True, help="One of the message's keys.")
@click.option(
    "--since", "--begin", "begin", type=PAST, default=0, help="Find only messages stored at or after this time."
)
@click.option("--until", "--end", "end", type=PAST, help="Find only messages stored at or before this time.")
@click.option(
    "--limit",
    "--max",
    "limit",
    type=click.IntRange(1, MAX_QUERY_MESSAGES),
    default=32,
    show_default=True,
    help="Maximum number of messages to show.",
)
@namesrv_option
@output_option
def query(topic: str, key: str, begin: int, end: int | None, limit: int, namesrv: str, output: str) -> None:
    """Find messages by key, in the order in which they were stored."""
    last = END_OF_TIME_MS if end is None else end

    async def work(admin: Admin) -> list[MessageExt]:
        return await admin.query_message(topic, key, max_messages=limit, begin_ms=begin, end_ms=last)

    found = survey(namesrv, work)
    if not found and output == "table":
        raise NotFoundError(f"topic {topic} has no message with key {key}", next_step="it may have expired")
    show_found(found, key, output)


def show_found(found: Sequence[MessageExt], key: str, output: str) -> None:
    """Show the messages with a key."""
    rows = [message_row(message) for message in found]
    columns = _FOUND if output == "table" else tuple(Column(key, key) for key in (rows[0] if rows else {}))
    show(rows, columns, output, title=f"Messages with key {key}")


@command.command("at")
@click.option("--topic", type=TOPIC, required=True, help="The topic.")
@click.option("--broker", type=BROKER, help="Name of the broker; required if several brokers have the topic.")
@click.option("--queue", type=click.IntRange(0), required=True, help="Queue number.")
@click.option("--offset", type=click.IntRange(0), required=True, help="Offset in the queue.")
@_raw_option
@namesrv_option
@output_option
def at(topic: str, broker: str | None, queue: int, offset: int, raw: bool, namesrv: str, output: str) -> None:
    """Show the message at an offset in a queue."""

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
                next_step=f"choose one of its brokers with --broker: {', '.join(brokers)}",
            )
        consumer = PullConsumer(TOOLS_GROUP, instance=admin.instance)
        async with consumer:
            result = await consumer.pull(chosen[0], offset, 1)
        if result.status is not PullStatus.FOUND:
            raise NotFoundError(
                f"queue {queue} of topic {topic} has no message at offset {offset}",
                next_step=f"its offsets are {result.min_offset} to {result.max_offset - 1}; see cometmq topic stats "
                f"{topic}",
            )
        return result.messages[0]

    _show_message(administer(namesrv, work), raw, output)


command.add_command(trace)
command.add_command(why)


def _show_message(message: MessageExt, raw: bool, output: str) -> None:
    if raw:
        sys.stdout.buffer.write(message.body)
        return
    row: dict[str, Any] = message_row(message)
    show_one(row, output, title=f"Message {message.msg_id}")
