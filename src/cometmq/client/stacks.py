"""Where every thread and task of this process is (``jstack``)."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Mapping


def stacks() -> str:
    """The stacks, for people to read."""
    names: Mapping[int | None, str] = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, str(ident))}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    for task in asyncio.all_tasks():
        frames = "".join(line for frame in task.get_stack(limit=4) for line in traceback.format_stack(frame, limit=1))
        parts.append(f"task {task.get_name()}\n{frames}")
    return "\n".join(parts)
