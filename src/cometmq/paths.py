"""Reads local paths in user input, plain or as ``file:`` URLs; all other schemes are rejected.

Without this check, ``s3://bucket/lake`` would mean a directory ``s3:`` in the current directory.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from cometmq.errors import CometMQError

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?:/|$)")
"""Matches the scheme of a URL; ``pathlib`` keeps only one slash after it. A single letter is a Windows drive, not a
scheme."""
_FILE_URL: Final = re.compile(r"[Ff][Ii][Ll][Ee]:(?://(?:localhost(?=/))?)?(/.*)", re.DOTALL)
SERVED: Final = "use a path on this machine, such as /data/lake, lake or file:///data/lake"


class PathError(CometMQError):
    """A path has an unsupported scheme."""


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URL in lower case, or None for a plain path."""
    url = _URL.match(path)
    return None if url is None else url[1].lower()


def local_text(path: str) -> str:
    """Return a local path from a plain path or a ``file:`` URL.

    :raises PathError: the path has another scheme, or the URL names another host.
    """
    url = _URL.match(path)
    if url is None:
        return path
    of_file = _FILE_URL.fullmatch(path)
    if of_file is not None and not of_file[1].startswith("//"):
        return unquote(of_file[1])
    if url[1].lower() == "file":
        raise PathError(f"{path} is not a file on this machine", next_step=SERVED)
    raise PathError(f"{path}: the scheme {url[1]} is not supported", next_step=f"{SERVED}; mount or copy other files")


def take_local_paths(options: Any) -> None:
    """Convert path fields of a frozen dataclass to local paths, in its ``__post_init__``.

    :raises PathError: a path has an unsupported scheme.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Path):
            object.__setattr__(options, field.name, local_path(value))
        elif isinstance(value, tuple) and value and isinstance(value[0], Path):
            object.__setattr__(options, field.name, tuple(map(local_path, value)))


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a local path as :func:`local_text` does.

    :raises PathError: see :func:`local_text`.
    """
    return Path(local_text(os.fspath(path)))
