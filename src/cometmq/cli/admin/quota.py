"""``cometmq quota``: manage the quotas of accounts, client addresses and groups."""

from __future__ import annotations

import re
from typing import Any, Final

import click

from cometmq.auth.model import AuthError
from cometmq.auth.quota.model import Limits, QuotaInfo, Subject
from cometmq.cli.admin.changes import yes_option
from cometmq.cli.connection import administer, confirm_deletion, namesrv_option
from cometmq.cli.dry_run import dry_run_option, is_dry_run, show_only
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.changes import Change
from cometmq.remoting.admin_headers import PutQuotaRequestHeader

_NO_LIMIT: Final = -1
_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_AMOUNT: Final = re.compile(r"(\d{1,18})\s*([kmg]?)b?", re.IGNORECASE)
_TITLES: Final = {
    "messagesIn": "Messages/s in",
    "bytesIn": "Bytes/s in",
    "messagesOut": "Messages/s out",
    "bytesOut": "Bytes/s out",
    "connections": "Connections",
    "topics": "Topics",
}
_COLUMNS: Final = (
    Column("broker", "Broker"),
    Column("subject", "Subject"),
    *(Column(name, title, right=True) for name, title in _TITLES.items()),
    Column("delayed", "Delayed", right=True),
    Column("denials", "Denials", right=True),
    Column("subjects", "Counted", right=True),
)

server_option = click.option("--server", metavar="HOST:PORT", help="Use only this broker.  [default: all]")


class _Amount(click.ParamType[int]):
    """Click type for a limit: a number with a unit, or ``none``."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        if text.lower() == "none":
            return _NO_LIMIT
        found = _AMOUNT.fullmatch(text)
        if found is None:
            self.fail(f"{text!r} is not a number such as 500, 20k, 5M or 1G, or none", param, ctx)
        return int(found[1]) * _UNITS[found[2].lower()]


class _SubjectType(click.ParamType[str]):
    """Click type for a quota's subject, such as account:NAME."""

    name = "SUBJECT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return str(Subject.parse(str(value)))
        except AuthError as error:
            self.fail(str(error), param, ctx)


_AMOUNT_TYPE: Final = _Amount()
_SUBJECT: Final = _SubjectType()


@click.group("quota")
def command() -> None:
    """Manage quotas for accounts, client addresses and groups.

    A SUBJECT is account:NAME, address:IP, address:NETWORK/BITS or group:NAME. If the name is * or the address is a
    network, each matching account, address or group gets its own quota. The most specific quota applies.
    """


@command.command("set")
@click.argument("subject", type=_SUBJECT)
@click.option("--messages-in", type=_AMOUNT_TYPE, help="Maximum number of messages to send per second.")
@click.option("--bytes-in", type=_AMOUNT_TYPE, help="Maximum number of bytes to send per second.")
@click.option("--messages-out", type=_AMOUNT_TYPE, help="Maximum number of messages to receive per second.")
@click.option("--bytes-out", type=_AMOUNT_TYPE, help="Maximum number of bytes to receive per second.")
@click.option("--connections", type=_AMOUNT_TYPE, help="Maximum number of connections that send or pull.")
@click.option(
    "--topic-count", "topics", type=_AMOUNT_TYPE, help="Maximum number of topics that the subject may create."
)
@server_option
@dry_run_option
@namesrv_option
def set_quota(
    subject: str,
    messages_in: int | None,
    bytes_in: int | None,
    messages_out: int | None,
    bytes_out: int | None,
    connections: int | None,
    topics: int | None,
    server: str | None,
    namesrv: str,
) -> None:
    """Create or change a SUBJECT's quota.

    Amounts are numbers such as 500, 20k, 5M or 1G; none removes a limit. Other limits remain unchanged.
    """
    quota = PutQuotaRequestHeader(subject, messages_in, bytes_in, messages_out, bytes_out, connections, topics)
    amounts = (messages_in, bytes_in, messages_out, bytes_out, connections, topics)
    wanted = {name: amount for name, amount in zip(_TITLES, amounts, strict=True) if amount is not None}
    if all(amount is None for amount in (messages_in, bytes_in, messages_out, bytes_out, connections, topics)):
        raise click.UsageError("give a limit: --messages-in, --bytes-in, --messages-out, --bytes-out, …")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            show_only(f"the quota of {subject}", await _differences(admin, subject, wanted, server))
            return
        await admin.put_quota(quota, address=server)
        notify(f"Set the quota of {subject}.")

    administer(namesrv, work)


@command.command("list")
@click.option("--each", is_flag=True, help="List every active subject, starting with the most denials.")
@server_option
@namesrv_option
@output_option
def list_quotas(each: bool, server: str | None, namesrv: str, output: str) -> None:
    """List quotas with their current usage and denials.

    Usage is averaged over ten seconds. Denials are counted since the broker started.
    """

    async def work(admin: Admin) -> dict[str, list[QuotaInfo]]:
        return await admin.quotas(each=each, address=server)

    _show(administer(namesrv, work), output)


@command.command("show")
@click.argument("subject", type=_SUBJECT)
@server_option
@namesrv_option
@output_option
def show_quota(subject: str, server: str | None, namesrv: str, output: str) -> None:
    """Show the quota that applies to a SUBJECT, and its usage."""

    async def work(admin: Admin) -> dict[str, list[QuotaInfo]]:
        return await admin.quotas(subject, address=server)

    _show(administer(namesrv, work), output)


@command.command("delete")
@click.argument("subject", type=_SUBJECT)
@yes_option
@server_option
@dry_run_option
@namesrv_option
def delete(subject: str, yes: bool, server: str | None, namesrv: str) -> None:
    """Delete a SUBJECT's quota."""
    if not yes:
        confirm_deletion(f"the quota of {subject}", "removes its limits")

    async def work(admin: Admin) -> None:
        if is_dry_run():
            show_only(f"the quota of {subject}", await _differences(admin, subject, None, server))
            return
        await admin.delete_quota(subject, address=server)
        notify(f"Deleted the quota of {subject}.")

    administer(namesrv, work)


async def _differences(admin: Admin, subject: str, wanted: dict[str, int] | None, server: str | None) -> list[Change]:
    """Return the changes that a subject's new limits make on each broker. None removes all limits."""
    changes: list[Change] = []
    for broker, infos in (await admin.quotas(address=server)).items():
        own = next((Limits.given(info.limits) for info in infos if info.quota == subject), {})
        limits = dict.fromkeys(own, _NO_LIMIT) if wanted is None else wanted
        changes += [
            Change(broker, _TITLES[name], own.get(name), None if amount == _NO_LIMIT else amount)
            for name, amount in limits.items()
        ]
    return changes


def _show(found: dict[str, list[QuotaInfo]], output: str) -> None:
    rows = [_row(broker, info, is_text=output == "table") for broker, infos in found.items() for info in infos]
    columns = [
        column
        for column in _COLUMNS
        if output != "table" or column.key not in _TITLES or any(row[column.key] is not None for row in rows)
    ]
    if output != "table":
        columns.insert(2, Column("quota", "Quota"))
        columns.append(Column("use", "Use"))
    show(rows, columns, output, title="Quotas")


def _row(broker: str, info: QuotaInfo, *, is_text: bool) -> dict[str, Any]:
    given = Limits.given(info.limits)
    limits: dict[str, Any] = {name: given.get(name) for name in _TITLES}
    if is_text:
        limits = {
            name: None if most is None else f"{info.use[name]:,.0f} of {most:,}" if name in info.use else f"{most:,}"
            for name, most in limits.items()
        }
    return {
        "broker": broker,
        "subject": info.subject,
        "quota": info.quota,
        **limits,
        "delayed": info.delayed,
        "denials": info.denials,
        "subjects": info.subjects,
        "use": info.use,
    }
