"""What a Spark checkpoint directory tells about its query: ``metadata`` holds its id, ``commits/N`` its batches.

Spark writes ``metadata``, then ``offsets/0``, then, when batch 0 is done, ``commits/0``, and so on: each beside its
place, under a hidden name, and puts it there whole. Killed while it writes ``offsets/0``, it leaves a directory that it
refuses to begin in (``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``), although no batch was ever planned there.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from pathlib import Path
from typing import Any, Final

from cometmq.spark.errors import ArchiveError

SET_ASIDE: Final = "_dead"
"""Directory of a checkpoint for what dead starts have left."""
_LOGS: Final = ("offsets", "commits")

_log = logging.getLogger(__name__)


def query_id_of(checkpoint: str | Path) -> str | None:
    """Read the id that Spark gave to the query; None if the checkpoint is new.

    :raises ArchiveError: it is no checkpoint.
    """
    path = Path(checkpoint) / "metadata"
    if not path.is_file():
        return None
    try:
        identity: Any = json.loads(path.read_bytes())
        return str(identity["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(
            f"{path} is not the metadata of a Spark checkpoint",
            next_step="name another checkpoint: a new one goes on where the archive's last commit ends",
        ) from error


def last_committed_batch(checkpoint: str | Path) -> int | None:
    """Find the last batch that Spark has marked as done."""
    return max(_batches(Path(checkpoint) / "commits"), default=None)


def has_begun(checkpoint: str | Path) -> bool:
    """Whether a batch was ever planned: from then on the checkpoint says where the query goes on."""
    return any(_batches(Path(checkpoint) / name) for name in _LOGS)


def set_aside_dead_start(checkpoint: str | Path) -> Path | None:
    """Move what a start that was killed before its first batch has left; gives where to, None if there was nothing.

    Nothing of a checkpoint that has begun is touched.
    """
    root = Path(checkpoint)
    if not (root / "offsets").is_dir() or has_begun(root):
        return None
    left = [path for name in (*_LOGS, "state") for path in _listed(root / name)]
    try:
        query_id_of(root)
    except ArchiveError:  # never by a kill, but by a power cut
        left += [path for path in _listed(root) if path.name in ("metadata", ".metadata.crc")]
    if not left:
        return None
    aside = next(path for path in (root / SET_ASIDE / str(n) for n in itertools.count()) if not path.exists())
    for path in left:
        target = aside / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # a driver of Spark Connect may still be at it
            path.rename(target)
    _log.warning("a start that died had left %s without a first batch; what it wrote is in %s", root, aside)
    return aside


def _batches(directory: Path) -> list[int]:
    return [int(path.name) for path in _listed(directory) if path.name.isdecimal()]


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []
