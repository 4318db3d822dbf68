"""``cometmq top``: a live view of the rate and lag of topics, groups and clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

import click

from cometmq.cli.admin.top_screen import Keys, Screen
from cometmq.cli.connection import administer, namesrv_option
from cometmq.cli.failures import PARTLY, WrongUseError
from cometmq.cli.moments import Duration
from cometmq.cli.output import Column, notify, output_option, show
from cometmq.client.admin import Admin
from cometmq.client.admin.activity import ActivityWatch, Snapshot
from cometmq.errors import CometMQError

LEAST_EVERY: Final = timedelta(milliseconds=200)
_COLUMNS: Final = {
    "topics": (
        Column("topic", "Topic", topics=True),
        Column("in_per_s", "In/s", right=True),
        Column("messages", "Messages", right=True),
        Column("groups", "Groups", right=True),
        Column("lag", "Lag", right=True),
    ),
    "groups": (
        Column("group", "Group"),
        Column("out_per_s", "Out/s", right=True),
        Column("lag", "Lag", right=True),
        Column("members", "Members", right=True),
        Column("topics", "Topics", right=True),
    ),
    "clients": (
        Column("client_id", "Client"),
        Column("kind", "Kind"),
        Column("group", "Group"),
        Column("per_s", "Out/s", right=True),
        Column("lag", "Lag", right=True),
        Column("address", "Address"),
        Column("language", "Language"),
    ),
}
_SORTS: Final = {
    "topics": {"rate": "in_per_s", "lag": "lag", "messages": "messages", "name": "topic"},
    "groups": {"rate": "out_per_s", "lag": "lag", "members": "members", "name": "group"},
    "clients": {"rate": "per_s", "lag": "lag", "name": "client_id"},
}
VIEWS: Final = tuple(_COLUMNS)


@dataclass(frozen=True)
class View:
    """The current view: the kind of rows (topics, groups or clients), their order and their filter."""

    kind: str
    sort: str
    filter: str = ""
    limit: int | None = None

    def rows(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        """Return the rows in the view's order, with unknown values at the end."""
        key = _SORTS[self.kind].get(self.sort, _SORTS[self.kind]["rate"])
        rows = [
            row
            for row in map(asdict, getattr(snapshot, self.kind))
            if self.filter.lower()
            in " ".join(str(row[name]) for name in ("topic", "group", "client_id") if name in row).lower()
        ]
        if key in ("topic", "group", "client_id"):
            rows.sort(key=lambda row: str(row[key]))
        else:
            rows.sort(key=lambda row: (row[key] is None, -(row[key] or 0)))
        return rows[: self.limit]

    def after_keys(self, keys: Keys) -> View:
        """Return the view that the pressed keys select."""
        kind = keys.view or self.kind
        sorts = list(_SORTS[kind])
        sort = self.sort if self.sort in sorts else sorts[0]
        if keys.next_sort:
            sort = sorts[(sorts.index(sort) + 1) % len(sorts)]
        return replace(self, kind=kind, sort=sort, filter=keys.filter)


@click.command("top")
@click.argument("kind", type=click.Choice(VIEWS), default="topics")
@click.option(
    "--sort",
    type=click.Choice(["rate", "lag", "messages", "members", "name"]),
    default="rate",
    help="Sort order of the rows.",
)
@click.option("--filter", "text", default="", help="Show only names that contain this text.")
@click.option(
    "--limit", type=click.IntRange(1), help="Number of rows to show.  [default: as many as fit on the terminal]"
)
@click.option(
    "--every", type=Duration(), default="2s", show_default=True, metavar="TIME", help="Interval between updates."
)
@click.option("--once", is_flag=True, help="Measure once for the interval in --every, print the result and exit.")
@namesrv_option
@output_option
def command(
    kind: str, sort: str, text: str, limit: int | None, every: timedelta, once: bool, namesrv: str, output: str
) -> None:
    """Watch the rate and lag of topics, groups or clients.

    Press t, g or c to choose what is shown, s to choose the order, / to enter a filter, and q to quit. Rates are
    measured between updates.
    """
    if every < LEAST_EVERY:
        raise WrongUseError(f"--every must be at least {LEAST_EVERY.total_seconds():g} s")
    if sort not in _SORTS[kind]:
        raise WrongUseError(f"{kind} cannot be sorted by {sort}; use {', '.join(_SORTS[kind])}")
    view = View(kind, sort, text, limit)
    if once:
        _show_once(view, every.total_seconds(), namesrv, output)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUseError("top needs a terminal", next_step="use --once -o json in a pipe")
    administer(namesrv, lambda admin: _live(admin, view, every.total_seconds()))


def _show_once(view: View, every_s: float, namesrv: str, output: str) -> None:
    async def work(admin: Admin) -> Snapshot:
        watch = ActivityWatch(admin, with_topics=view.kind == "topics", with_clients=view.kind != "topics")
        await watch.poll(everything=True)
        await admin.instance.clock.sleep(every_s)
        return await watch.poll(everything=True)

    snapshot = administer(namesrv, work)
    for broker in snapshot.brokers:
        if broker.trouble:
            notify(f"cometmq: left out broker {broker.broker}: {broker.trouble}")
            click.get_current_context().meta[PARTLY] = True
    show(view.rows(snapshot), _COLUMNS[view.kind], output, title=view.kind.capitalize())


async def _live(admin: Admin, view: View, every_s: float) -> None:
    """Update the screen until q is pressed."""
    watch = ActivityWatch(admin)
    snapshot = await watch.poll()
    trouble = ""
    with Screen(view.filter) as screen:
        looking = asyncio.create_task(_pause_and_measure(watch, admin, every_s))
        try:
            while not screen.keys.quit:
                screen.draw(snapshot.brokers, _title(view), view.rows(snapshot), _shown(view), trouble)
                await screen.wait(looking)
                view = view.after_keys(screen.take_keys())
                if looking.done():
                    try:
                        snapshot, trouble = looking.result(), ""
                    except CometMQError as error:
                        trouble = str(error)
                    looking = asyncio.create_task(_pause_and_measure(watch, admin, every_s))
        finally:
            looking.cancel()


async def _pause_and_measure(watch: ActivityWatch, admin: Admin, every_s: float) -> Snapshot:
    await admin.instance.clock.sleep(every_s)
    return await watch.poll()


def _shown(view: View) -> Sequence[Column]:
    return _COLUMNS[view.kind]


def _title(view: View) -> str:
    chosen = f", filter {view.filter!r}" if view.filter else ""
    return f"{view.kind} by {view.sort}{chosen}    t topics  g groups  c clients  s sort  / filter  q quit"
