"""Click types for local paths on the command line. They also accept ``file:`` URLs."""

from __future__ import annotations

import os
from typing import Any

import click

from cometmq.paths import PathError, local_text


def _local(value: Any, kind: click.ParamType[Any], param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if not isinstance(value, str | os.PathLike):
        return value
    try:
        return local_text(os.fspath(value))
    except PathError as error:
        kind.fail(str(error), param, ctx)


class LocalPath(click.Path):
    """Click type for a path in the local file system. Paths with other schemes are rejected."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value from the command line."""
        return super().convert(_local(value, self, param, ctx), param, ctx)


class LocalFile(click.File):
    """Click type for an open file in the local file system."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a value from the command line."""
        return super().convert(_local(value, self, param, ctx), param, ctx)
