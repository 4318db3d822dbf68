"""Opens the storage that a path or a URL names."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.paths import PathError
from cometmq.storage.hdfs import HdfsStorage
from cometmq.storage.interface import Storage
from cometmq.storage.local import LocalStorage
from cometmq.storage.location import FORMS, Location
from cometmq.storage.objects import ObjectStorage
from cometmq.storage.options import StorageOptions


def open_storage(url: str | os.PathLike[str] | Location, options: StorageOptions | None = None) -> Storage:
    """Return the storage for a path or URL. The storage connects at its first request.

    :raises PathError: the URL has an unknown scheme or is incomplete.
    """
    location = url if isinstance(url, Location) else Location.parse(url)
    if location.kind == "local":
        return LocalStorage(Path(location.path))
    if location.kind == "iceberg":
        raise PathError(f"{location} is a catalog table, which only an archive can use", next_step=f"use {FORMS}")
    if location.kind == "hdfs":
        return HdfsStorage(location)
    return ObjectStorage(location, options or StorageOptions())
