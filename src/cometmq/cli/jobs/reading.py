"""What every job that looks into messages shares: the options that say where and which, and how it ends."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import click

from cometmq.cli.administration import namesrv_option
from cometmq.cli.failures import DONE
from cometmq.cli.jobs.access import access_option
from cometmq.cli.moments import Moment
from cometmq.cli.visible import visible

if TYPE_CHECKING:
    from cometmq.cli.job_report import Plot
    from cometmq.spark.job_source import MessageSource

F = TypeVar("F", bound=Callable[..., Any])
_directory = click.Path(path_type=Path, file_okay=False, exists=True)


def _in_order(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator that gives a command these options in this order."""

    def decorate(command: F) -> F:
        return functools.reduce(lambda so_far, option: option(so_far), reversed(options), command)

    return decorate


class Report(Protocol):
    """What a job hands back."""

    def render(self) -> str:
        """For a terminal."""

    def to_dict(self) -> dict[str, Any]:
        """For a program."""


R = TypeVar("R", bound=Report)


class Ending(NamedTuple):
    """Where the report of a job goes."""

    page: Path | None
    """As HTML too."""
    output: str
    """On stdout: ``table``, or anything else for JSON."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What those options said."""

    namesrv: str
    archive: Path | None
    store: Path | None
    broker_name: str
    since: int | None
    """ms since 1970, as is ``until``."""
    until: int | None
    master: str
    page: Path | None
    """Where the report goes as HTML too."""
    output: str
    access: dict[str, str]

    @property
    def source(self) -> MessageSource:
        """Where to read; archive and store win over nameservers, which have a default."""
        from cometmq.spark.job_source import MessageSource

        namesrv = self.namesrv if self.archive is None and self.store is None else None
        return MessageSource(namesrv, self.archive, self.store, self.broker_name, self.since, self.until, self.access)


page_options = _in_order(
    click.option(
        "--report", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write the report as HTML too."
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Form of the report.",
    ),
)
"""The last options of every job: where its report goes, and in which form."""
report_options = _in_order(
    click.option("--master", default="local[*]", show_default=True, help="Spark master, or sc://HOST of Connect."),
    page_options,
)
"""Where a job runs, and those."""


def reading_options(command: F) -> F:
    """Give a command the options of :class:`Reading`, which it gets as its argument ``reading``.

    Those of ``report_options`` are among them; they are a decorator of their own, so that they stand last in --help.
    """
    options = (
        namesrv_option,
        access_option(),
        click.option("--archive", type=_directory, help="Read this archive, instead of asking brokers."),
        click.option("--store", type=_directory, help="Read the files of this store, instead of asking brokers."),
        click.option("--broker-name", default="", help="With --store: whose store it is, for the report."),
        click.option("--since", type=Moment(), help="Only what was stored at or after this time."),
        click.option("--until", type=Moment(), help="Only what was stored before this time."),
    )

    @functools.wraps(command)
    def packed(*args: Any, **named: Any) -> Any:
        said = {name: named.pop(name) for name in Reading.__dataclass_fields__}
        return command(*args, reading=Reading(**said), **named)

    return _in_order(*options)(packed)  # type: ignore[return-value]


def tell_step(step: str) -> None:
    """Say on stderr what a job begins to do."""
    click.echo(f"{step} …", err=True)


@contextmanager
def wrong_use() -> Iterator[None]:
    """Take what a job calls a wrong argument for a wrong use of its command.

    :raises click.UsageError: for every ``OptionError`` within the block.
    """
    from cometmq.spark.errors import OptionError

    try:
        yield
    except OptionError as error:
        raise click.UsageError(str(error), click.get_current_context()) from error


def end(
    reading: Reading | Ending, done: R, title: str, plots: Callable[[R], Sequence[Plot]], code: int = DONE, **more: Any
) -> int:
    """End a command: its report to stdout, and then as a page where that is asked for; returns its exit code.

    :param plots: draws the report; called for a page only.
    :param code: anything but 0 gets the page the mark of something that needs a look.
    :param more: stands in the JSON too.
    """
    if reading.output == "table":
        click.echo(visible(done.render(), lines=True))
    else:
        click.echo(json.dumps(done.to_dict() | more | {"exit_code": code}, indent=2))
    if reading.page is not None:
        from cometmq.cli.job_report import write_page

        write_page(reading.page, title, code == DONE, done.render(), plots(done))
        click.echo(f"the report is in {reading.page}", err=True)
    return code
