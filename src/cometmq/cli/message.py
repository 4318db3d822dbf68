"""``cometmq message``: find stored messages by id, by key, or by their place in a queue."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from cometmq.cli.failures import WrongUseError
from cometmq.cli.fleet import Fleet, namesrv_option, on_fleet, unless
from cometmq.cli.moments import Moment
from cometmq.cli.output import Column, output_option, show, show_one
from cometmq.cli.rows import message_row
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.message.hosts import format_address
from cometmq.message.ids import decode_offset_msg_id
from cometmq.message.message import MessageExt, split_records
from cometmq.message.sysflag import PULL_SUBSCRIPTION
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import PullMessageRequestHeader, QueryMessageRequestHeader, ViewMessageRequestHeader

MAX_FOUND: Final = 64
"""Messages that a broker returns for one query (``maxMsgsNumBatch``)."""
_PORTS: Final = 65_536

_FOUND: Final = (
    Column("stored", "Stored"),
    Column("broker", "Broker"),
    Column("queue_id", "Queue", right=True),
    Column("queue_offset", "Offset", right=True),
    Column("tags", "Tag"),
    Column("keys", "Keys"),
    Column("msg_id", "Id"),
    Column("body", "Body"),
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

    async def work(fleet: Fleet) -> MessageExt:
        if topic is not None:
            found = await _query(fleet, topic, message_id, MAX_FOUND, 0, 2**63 - 1, unique=True)
            if found:
                return found[-1]
        try:
            ip, port, offset = decode_offset_msg_id(message_id)
        except ValueError:
            port = _PORTS
        if not 0 < port < _PORTS:
            if topic is None:
                raise WrongUseError(f"{message_id} is no offset id", next_step="name the topic with --topic")
            raise NotFoundError(f"topic {topic} has no message {message_id}", next_step="it may have expired")
        address = format_address(ip, port)
        nothing = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)
        answer = await unless(
            fleet.ask(
                address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset), doing=f"asking {address}"
            ),
            nothing,
        )
        if answer is None:
            raise NotFoundError(f"{address} has no message {message_id}", next_step="it may have expired")
        return next(split_records(answer.body))

    _show_message(on_fleet(namesrv, work), raw, output)


@command.command("query")
@click.option("--topic", required=True)
@click.option("--key", required=True, help="One of the keys that the producer gave.")
@click.option("--begin", type=Moment(), default=0, help="Not stored before this time.")
@click.option("--end", type=Moment(), help="Not stored after this time.")
@click.option("--max", "limit", type=click.IntRange(1, MAX_FOUND), default=32, show_default=True, help="Per broker.")
@namesrv_option
@output_option
def query(topic: str, key: str, begin: int, end: int | None, limit: int, namesrv: str, output: str) -> None:
    """Find messages by key, in the order they were stored."""
    last = SYSTEM_CLOCK.now_ms() + 1 if end is None else end
    found = on_fleet(namesrv, lambda fleet: _query(fleet, topic, key, limit, begin, last, unique=False))
    if not found and output == "table":
        raise NotFoundError(f"topic {topic} has no message with key {key}", next_step="it may have expired")
    rows = [message_row(message) for message in found]
    columns = _FOUND if output == "table" else tuple(Column(key, key) for key in (rows[0] if rows else {}))
    show(rows, columns, output, title=f"Messages with key {key}")


@command.command("at")
@click.option("--topic", required=True)
@click.option("--broker", help="Name of the broker; needed when the topic has several.")
@click.option("--queue", type=click.IntRange(0), required=True)
@click.option("--offset", type=click.IntRange(0), required=True)
@_raw_option
@namesrv_option
@output_option
def at(topic: str, broker: str | None, queue: int, offset: int, raw: bool, namesrv: str, output: str) -> None:
    """Show the message at one place of a queue."""

    async def work(fleet: Fleet) -> MessageExt:
        masters = await fleet.masters_of(topic)
        name = broker or (next(iter(masters)) if len(masters) == 1 else None)
        if name not in masters:
            raise WrongUseError(f"topic {topic} is on {', '.join(masters)}", next_step="name one with --broker")
        header = PullMessageRequestHeader(
            consumer_group="TOOLS_CONSUMER",
            topic=topic,
            queue_id=queue,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=PULL_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
            sub_version=0,
            expression_type="TAG",
        )
        nothing = (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_OFFSET_MOVED,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.SYSTEM_ERROR,
        )
        answer = await unless(
            fleet.ask(masters[name], RequestCode.PULL_MESSAGE, header, doing=f"pulling from {name}"), nothing
        )
        if answer is None:
            raise NotFoundError(
                f"queue {queue} of topic {topic} on {name} has no message at offset {offset}",
                next_step=f"cometmq topic stats {topic} shows what it has",
            )
        return next(split_records(answer.body, name))

    _show_message(on_fleet(namesrv, work), raw, output)


async def _query(
    fleet: Fleet, topic: str, key: str, limit: int, begin: int, end: int, *, unique: bool
) -> list[MessageExt]:
    header = QueryMessageRequestHeader(topic, key, limit, begin, end, unique_key_query=unique)
    found: list[MessageExt] = []
    for name, address in (await fleet.masters_of(topic)).items():
        answer = await unless(
            fleet.ask(address, RequestCode.QUERY_MESSAGE, header, doing=f"asking {name} for key {key}"),
            (ResponseCode.QUERY_NOT_FOUND,),
        )
        if answer is not None:
            found += split_records(answer.body, name)
    # The index knows hashes of keys only, so an answer may hold messages of other keys.
    mine = [message for message in found if (message.msg_id == key if unique else key in message.keys)]
    return sorted(mine, key=lambda message: (message.store_timestamp, message.commit_log_offset))


def _show_message(message: MessageExt, raw: bool, output: str) -> None:
    if raw:
        sys.stdout.buffer.write(message.body)
        return
    row: dict[str, Any] = message_row(message)
    show_one(row, output, title=f"Message {message.msg_id}")
