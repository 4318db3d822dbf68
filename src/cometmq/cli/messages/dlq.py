"""``cometmq dlq``: list, read, export and resend dead letters."""

from __future__ import annotations

import base64
import functools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace

from cometmq.cli.connection import administer, demand_group_name, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run
from cometmq.cli.failures import PartlyDoneError, WrongUseError
from cometmq.cli.local_path import LocalPath
from cometmq.cli.messages.message import message_row
from cometmq.cli.moments import PAST, local_time
from cometmq.cli.names import GROUP, TOPIC
from cometmq.cli.output import Column, Progress, notify, output_option, show
from cometmq.client.admin import END_OF_TIME_MS, Admin
from cometmq.client.dead_letters import (
    Ledger,
    Outcome,
    Selection,
    dead_letter_groups,
    origin_topic,
    read_dead_letters,
    resend,
)
from cometmq.errors import CometMQError
from cometmq.message.message import MessageExt
from cometmq.message.properties import ORIGIN_MESSAGE_ID
from cometmq.visible import json_text

_GROUPS: Final = (
    Column("group", "Group"),
    Column("count", "Dead letters", right=True),
    Column("oldest", "Oldest", time=True),
    Column("newest", "Newest", time=True),
)
_LETTERS: Final = (
    Column("stored", "Given up", time=True),
    Column("origin_topic", "Topic", topics=True),
    Column("tags", "Tag"),
    Column("keys", "Keys"),
    Column("reconsume_times", "Failures", right=True),
    Column("offset_msg_id", "Id"),
    Column("body", "Body", prose=True),
)


def _selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select dead letters. The command receives them as ``wanted``."""

    @functools.wraps(command)
    def packed(
        *, key: str | None, tag: str | None, origin_topic: str | None, begin: int, end: int | None, **others: Any
    ) -> Any:
        last = END_OF_TIME_MS if end is None else end
        return command(wanted=Selection(key, tag, origin_topic, frozenset(), begin, last), **others)

    for option in (
        click.option(
            "--until",
            "--end",
            "end",
            type=PAST,
            help="Select only dead letters that were given up at or before this time.",
        ),
        click.option(
            "--since",
            "--begin",
            "begin",
            type=PAST,
            default=0,
            help="Select only dead letters that were given up at or after this time.",
        ),
        click.option("--origin-topic", type=TOPIC, help="Select only dead letters that were sent to this topic."),
        click.option("--tag", help="Select only dead letters with this tag."),
        click.option("--key", help="Select only dead letters with this key."),
    ):
        packed = option(packed)
    return packed


@click.group("dlq")
def command() -> None:
    """List, read, export and resend dead letters, which are messages that a group failed to consume too often."""


@command.command("list")
@namesrv_option
@output_option
def list_groups(namesrv: str, output: str) -> None:
    """List the groups that have dead letters."""
    rows = [
        {
            "group": found.group,
            "count": found.count,
            "oldest": local_time(found.oldest_ms),
            "newest": local_time(found.newest_ms),
        }
        for found in administer(namesrv, dead_letter_groups)
    ]
    show(rows, _GROUPS, output, title="Dead letters")


@command.command("read")
@click.argument("group", type=GROUP)
@_selection_options
@click.option(
    "--limit",
    "--max",
    "limit",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of messages to show.",
)
@namesrv_option
@output_option
def read(
    group: str,
    wanted: Selection,
    limit: int,
    namesrv: str,
    output: str,
) -> None:
    """Show a group's dead letters, oldest first."""
    demand_group_name(group)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        return [_row(letter) async for letter in read_dead_letters(admin, group, wanted, limit)]

    rows = administer(namesrv, work)
    columns = _LETTERS if output == "table" else tuple(Column(name, name) for name in (rows[0] if rows else {}))
    show(rows, columns, output, title=f"Dead letters of {group}")


def _row(letter: MessageExt) -> dict[str, Any]:
    row = message_row(letter)
    return {
        "group_topic": letter.stored_topic,
        "origin_topic": origin_topic(letter),
        "origin_msg_id": letter.properties.get(ORIGIN_MESSAGE_ID),
        **row,
    }


@command.command("export")
@click.argument("group", type=GROUP)
@_selection_options
@click.option("--to", "path", type=LocalPath(dir_okay=False, path_type=Path), help="File to write.  [default: stdout]")
@namesrv_option
def export(
    group: str,
    wanted: Selection,
    path: Path | None,
    namesrv: str,
) -> None:
    """Export complete dead letters as JSON lines."""
    demand_group_name(group)

    async def work(admin: Admin) -> int:
        count = 0
        with path.open("w", encoding="utf-8") if path is not None else nullcontext(sys.stdout) as file:
            async for letter in read_dead_letters(admin, group, wanted):
                file.write(json_text(_all_fields(letter)) + "\n")
                count += 1
        return count

    count = administer(namesrv, work)
    notify(f"Dead letters of {group} exported: {count}")


def _all_fields(letter: MessageExt) -> dict[str, Any]:
    """Return every field of a stored message. The body is decompressed."""
    return {
        "topic": letter.stored_topic,
        "broker": letter.broker_name,
        "queue_id": letter.queue_id,
        "queue_offset": letter.queue_offset,
        "offset_msg_id": letter.offset_msg_id,
        "msg_id": letter.msg_id,
        "flag": letter.flag,
        "sys_flag": letter.sys_flag,
        "born_timestamp": letter.born_timestamp,
        "born_host": letter.born_host,
        "store_timestamp": letter.store_timestamp,
        "store_host": letter.store_host,
        "reconsume_times": letter.reconsume_times,
        "prepared_transaction_offset": letter.prepared_transaction_offset,
        "properties": letter.properties,
        "body_base64": base64.b64encode(letter.body).decode(),
    }


@command.command("resend")
@click.argument("group", type=GROUP)
@click.option(
    "--id",
    "ids",
    multiple=True,
    help="Resend the dead letter that has this id, or whose original message has it. May be repeated.",
)
@click.option("--all", "everything", is_flag=True, help="Resend all dead letters that match the other options.")
@_selection_options
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum number of messages per second.")
@click.option(
    "--ledger",
    type=LocalPath(dir_okay=False, path_type=Path),
    help="File that records which messages were sent.  [default: ./dlq-GROUP.ledger]",
)
@dry_run_option
@namesrv_option
def resend_command(
    group: str,
    ids: tuple[str, ...],
    everything: bool,
    wanted: Selection,
    rate: float | None,
    ledger: Path | None,
    namesrv: str,
) -> None:
    """Send dead letters to their original topics, each only once.

    A ledger file records which messages were sent. After an interruption, repeat the command with the same ledger. Dead
    letters remain in their topic until they expire.
    """
    demand_group_name(group)
    wanted = replace(wanted, ids=frozenset(ids))
    if wanted == Selection() and not everything:
        raise WrongUseError("no dead letters are selected", next_step="add --id, another option, or --all")
    outcomes: Counter[Outcome] = Counter()

    async def work(admin: Admin) -> None:
        letters = [letter async for letter in read_dead_letters(admin, group, wanted)]
        if is_dry_run():
            for letter in letters:
                click.echo(json_text(_row(letter)))
            notify(f"Dead letters of {group} that would be sent again: {len(letters)}")
            return
        with (
            Ledger(ledger or Path(f"dlq-{group}.ledger")) as notes,
            Progress(f"dead letters of {group}", len(letters)) as progress,
        ):

            def report(_: MessageExt, outcome: Outcome, words: str) -> None:
                outcomes[outcome] += 1
                progress.advance(1)
                if words:
                    notify(words)

            await resend(admin, _each(letters), notes, report, rate=rate)

    administer(namesrv, work)
    if not is_dry_run():
        _conclude(group, outcomes)


async def _each(letters: list[MessageExt]) -> AsyncIterator[MessageExt]:
    for letter in letters:
        yield letter


def _conclude(group: str, outcomes: Counter[Outcome]) -> None:
    failed = outcomes[Outcome.FAILED]
    done = f"Dead letters of {group} sent again: {outcomes[Outcome.SENT]}"
    if outcomes[Outcome.SENT_BEFORE]:
        done += f", sent earlier: {outcomes[Outcome.SENT_BEFORE]}"
    if not failed:
        notify(done)
    elif failed == outcomes.total():
        raise CometMQError(
            f"none of the {failed} dead letters was sent", next_step="fix the cause and repeat the command"
        )
    else:
        raise PartlyDoneError(f"{done}, failed: {failed}", next_step="repeat the command to send the others")
