"""Selects part of a long list: one page of the names that match a pattern."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from typing import Any

import click

from cometmq.cli.output import notify
from cometmq.message.queue_names import own_spelling

match_option = click.option(
    "--match",
    metavar="PATTERN",
    help="Select only names that match this shell pattern, such as 'orders-*'.",
)
"""The ``--match`` option of all commands that list topics or groups."""


@dataclass(frozen=True)
class Part:
    """The options for one page of the names that match a pattern."""

    match: str | None = None
    limit: int = 0
    """Number of names on a page, or 0 for all names."""
    number: int = 1
    """Number of the page, starting at 1."""

    def of(self, names: Iterable[str]) -> Sequence[str]:
        """Return the names on the page. If there are more names, print how to see them."""
        found = matching_names(names, self.match)
        if not self.limit:
            return found
        first = (self.number - 1) * self.limit
        shown = found[first : first + self.limit]
        if len(shown) < len(found):
            rows = f"{first + 1:,} to {first + len(shown):,} of {len(found):,}" if shown else f"none of {len(found):,}"
            following = f"--page {self.number + 1} shows more, " if first + len(shown) < len(found) else ""
            notify(f"Rows {rows}: {following}--match PATTERN filters, --limit 0 shows all.")
        return shown


def matching_names(names: Iterable[str], pattern: str | None) -> list[str]:
    """Return the names that match a shell pattern, also in their own spelling, or all if there is no pattern."""
    return [
        name
        for name in names
        if pattern is None or fnmatchcase(name, pattern) or fnmatchcase(own_spelling(name), pattern)
    ]


def part_options(rows: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add ``--match``, ``--limit`` and ``--page``. The command receives them as ``part``.

    :param rows: number of table rows on a terminal if there is no ``--limit``. Pipes and other formats contain all
        rows.
    """

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_part(match: str | None, limit: int | None, page: int | None, **options: Any) -> Any:
            if limit is None:
                is_page = page is not None or (options["output"] == "table" and sys.stdout.isatty())
                limit = rows if is_page else 0
            return command(part=Part(match, limit, page or 1), **options)

        every = f"{rows:,} in a table on a terminal, otherwise all"
        options = click.option(
            "--limit", type=click.IntRange(0), show_default=every, help="Number of rows per page; 0 shows all rows."
        )(click.option("--page", type=click.IntRange(1), help="Page number, starting at 1.")(with_part))
        return match_option(options)

    return decorated
