"""The topics that ``topic create`` and ``topic delete`` are for: arguments, ranges in them, and lines of a file."""

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
"""Names of one command: more than brokers are good for."""

file_option: Final[Callable[[Callable[..., Any]], Callable[..., Any]]] = click.option(
    "--file", type=LocalFile("r"), help="Also the names in this file, one a line; - is stdin."
)


def chosen_names(arguments: Iterable[str], file: IO[str] | None) -> list[str]:
    """Return the names of a command, each once.

    :raises WrongUseError: there is none, one is not allowed, or there are too many.
    """
    found: dict[str, None] = {}
    for name in chain.from_iterable(map(_expanded, chain(arguments, _lines(file) if file is not None else ()))):
        demand_topic_name(name)
        found[name] = None
        if len(found) > _MAX_NAMES:
            raise WrongUseError(f"more than {_MAX_NAMES:,} names")
    return list(found)


def _lines(file: IO[str]) -> Iterator[str]:
    """The names in a file; blank lines and those with # are none."""
    try:
        for line in file:
            if (name := line.strip()) and not name.startswith("#"):
                yield name
    except UnicodeDecodeError as error:
        raise WrongUseError(f"{file.name} is no text") from error


def _expanded(name: str) -> Iterator[str]:
    """A name for each number of its ranges, as ``orders-{01..20}`` in a shell."""
    found = _RANGE.search(name)
    if found is None:
        yield name
        return
    first, last = found.groups()
    width = len(first) if first.startswith("0") else 0
    for number in range(int(first), int(last) + 1):
        yield from _expanded(f"{name[: found.start()]}{number:0{width}}{name[found.end() :]}")
