"""Paths as people write them: of the local file system, or as its ``file:`` URLs; every other scheme is refused.

A path such as ``s3://bucket/lake`` would otherwise be a directory ``s3:`` below the current one.
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
"""The begin of a URL; ``pathlib`` leaves one of its slashes. One letter is a drive of Windows, in lines for Java."""
_FILE_URL: Final = re.compile(r"[Ff][Ii][Ll][Ee]:(?://(?:localhost(?=/))?)?(/.*)", re.DOTALL)
SERVED: Final = "paths of this machine are served: /data/lake, lake or file:///data/lake"


class PathError(CometMQError):
    """A path has a scheme that is not served."""


def local_text(path: str) -> str:
    """Return a path of the local file system, as it is written or by its ``file:`` URL.

    :raises PathError: it has another scheme, or is the URL of another host.
    """
    url = _URL.match(path)
    if url is None:
        return path
    of_file = _FILE_URL.fullmatch(path)
    if of_file is not None and not of_file[1].startswith("//"):
        return unquote(of_file[1])
    if url[1].lower() == "file":
        raise PathError(f"{path} is no file of this machine", next_step=SERVED)
    raise PathError(
        f"{path}: the scheme {url[1]} is not served", next_step=f"{SERVED}; mount what is elsewhere, or copy it"
    )


def take_local_paths(options: Any) -> None:
    """Make the paths in the fields of a frozen dataclass local ones: its ``__post_init__``.

    :raises PathError: one has a scheme that is not served.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Path):
            object.__setattr__(options, field.name, local_path(value))
        elif isinstance(value, tuple) and value and isinstance(value[0], Path):
            object.__setattr__(options, field.name, tuple(map(local_path, value)))


def local_path(path: str | os.PathLike[str]) -> Path:
    """Return a path of the local file system, as :func:`local_text` does.

    :raises PathError: as there.
    """
    return Path(local_text(os.fspath(path)))
