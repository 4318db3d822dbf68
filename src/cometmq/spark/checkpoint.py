"""What a Spark checkpoint directory tells about its query: ``metadata`` holds its id, ``commits/N`` its batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cometmq.spark.errors import ArchiveError


def query_id_of(checkpoint: str | Path) -> str | None:
    """Read the id that Spark gave to the query; None if the checkpoint is new.

    :raises ArchiveError: it is no checkpoint.
    """
    path = Path(checkpoint) / "metadata"
    if not path.is_file():
        return None
    try:
        identity: Any = json.loads(path.read_text())
        return str(identity["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{path} is not the metadata of a Spark checkpoint") from error


def last_committed_batch(checkpoint: str | Path) -> int | None:
    """Find the last batch that Spark has marked as done."""
    directory = Path(checkpoint) / "commits"
    numbers = [int(path.name) for path in directory.glob("[0-9]*")] if directory.is_dir() else []
    return max(numbers, default=None)
