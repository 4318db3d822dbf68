"""The files of a broker that is killed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from cometmq.broker.controller import Broker


async def leave_as_killed(broker: Broker, root: Path) -> None:
    """Stop a broker that is cut off, and restore its directory as it was before."""
    left = root.with_name(f"{root.name}.killed")
    try:
        # No request is answered from here on. Worker threads may go on: the copy has their writes or not. It has no
        # file that is about to replace another one, since that may be renamed while it is copied.
        shutil.copytree(root, left, ignore=shutil.ignore_patterns("*.tmp"), copy_function=_copy_if_there)
    finally:
        await broker.stop()
    shutil.rmtree(root)
    left.rename(root)


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file, unless a worker thread removes it meanwhile."""
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
