"""Storage paths and URLs on the command line, and the storage options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from cometmq.cli.failures import WrongUseError
from cometmq.options.declared import options_of
from cometmq.options.forms import OptionError
from cometmq.paths import PathError
from cometmq.storage.location import Location
from cometmq.storage.options import StorageOptions

F = TypeVar("F", bound=Callable[..., Any])
_NAMES: Final = ", ".join(name for name, declared in options_of(StorageOptions).items() if not declared.secret)


class StorageUrl(click.ParamType[str]):
    """Click type for a path, or the URL of an object store or HDFS. The value is the text."""

    name = "path or URL"

    def __init__(self, *, exists: bool = False, file: bool = False) -> None:
        """Create the type.

        :param exists: True if a local path must be a directory that exists.
        :param file: True if the value names a file, which may exist.
        """
        self._exists = exists
        self._file = file

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Check a value from the command line."""
        try:
            location = Location.parse(value)
        except PathError as error:
            self.fail(str(error), param, ctx)
        if self._file and location.kind == "local" and Path(location.path).is_dir():
            self.fail(f"File {value!r} is a directory.", param, ctx)
        if self._exists and location.kind == "local" and not Path(location.path).is_dir():
            self.fail(f"Directory {value!r} does not exist.", param, ctx)
        return str(location)


def storage_option(function: F) -> F:
    """Add ``--storage NAME=VALUE``, which may be repeated. The command receives the parsed options as ``storage``."""
    return click.option(
        "--storage",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_parse,
        help=f"Object store option: {_NAMES}. May be repeated. Credentials are read from the environment.",
    )(function)


def _parse(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> StorageOptions:
    texts = dict(value.partition("=")[::2] for value in values)
    known = options_of(StorageOptions)
    for name in texts:
        if name in known and known[name].secret:
            raise WrongUseError(
                f"{name} is a secret, and other users of this machine can read command lines",
                next_step="set it in the environment, or name a profile: --storage profile=NAME",
            )
    try:
        return StorageOptions.from_texts(texts)
    except OptionError as error:
        raise WrongUseError(f"--storage: {error.message}", next_step=error.next_step) from error
