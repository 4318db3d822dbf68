"""Options that ``cometmq console`` and ``cometmq serve`` share: the console's address, and the files that it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cometmq.cli.local_path import LocalPath
from cometmq.console.origins import Origin, origin_of

T = TypeVar("T", bound=Callable[..., object])


class _Url(click.ParamType[Origin]):
    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Origin:
        """Parse the address of a console."""
        found = origin_of(value)
        if found is None:
            self.fail(
                f"{value!r} is not the address of a console: write http:// or https://, a host and, unless it is the "
                f"default, a port, without a path, such as https://mq.example.com",
                param,
                ctx,
            )
        return found


def console_url_option(name: str) -> Callable[[T], T]:
    """Return the shared option with this name."""
    return click.option(
        name,
        "urls",
        type=_Url(),
        multiple=True,
        help="Address of the console behind a proxy, such as https://mq.example.com. May be repeated.",
    )


reports_option = click.option(
    "--reports",
    type=LocalPath(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory with the reports of Spark jobs (-o json), which the console shows on its Pipeline page.",
)
audit_log_option = click.option(
    "--audit-log",
    "audit_logs",
    type=LocalPath(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Broker's audit log or store directory, which the console shows. May be repeated.",
)
