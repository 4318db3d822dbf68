"""Reads topic names for ``topic create`` and ``topic delete`` from arguments, including ranges, and from files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Any, Final

import click

from cometmq.cli.connection import demand_topic_name
from cometmq.cli.failures import WrongUseError
from cometmq.cli.local_path import LocalFile

_RANGE: Final = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MAX_NAMES: Final = 100_000
"""Maximum number of names in one command, which is more topics than a broker can handle well."""

file_option: Final[Callable[[Callable[..., Any]], Callable[..., Any]]] = click.option(
    "--file", type=LocalFile("r"), help="Add the names in this file, one per line; - reads stdin."
)


def chosen_names(arguments: Iterable[str], file: IO[str] | None) -> list[str]:
    """Return a command's names without duplicates.

    :raises WrongUseError: no name is given, a name is invalid, or there are too many names.
    """
    found: dict[str, None] = {}
    for name in chain.from_iterable(map(_expanded, chain(arguments, _lines(file) if file is not None else ()))):
        demand_topic_name(name)
        found[name] = None
        if len(found) > _MAX_NAMES:
            raise WrongUseError(f"more than {_MAX_NAMES:,} names")
    return list(found)


def _lines(file: IO[str]) -> Iterator[str]:
    """Yield the names in a file. Blank lines and lines that begin with # are skipped."""
    try:
        for line in file:
            if (name := line.strip()) and not name.startswith("#"):
                yield name
    except UnicodeDecodeError as error:
        raise WrongUseError(f"{file.name} is not a text file") from error


def _expanded(name: str) -> Iterator[str]:
    """Yield a name for each number in a text's ranges, as a shell expands ``orders-{01..20}``."""
    found = _RANGE.search(name)
    if found is None:
        yield name
        return
    first, last = found.groups()
    width = len(first) if first.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        yield from _expanded(f"{name[: found.start()]}{number:0{width}}{name[found.end() :]}")
