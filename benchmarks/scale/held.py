"""Runs a command of CometMQ and measures how long each callback holds its event loop, in the loop's processor time.

    COMETMQ_HOLDS=FILE python -m benchmarks.scale.held broker -c broker.conf

SIGUSR1 writes the longest hold of each callback since the last signal to the file, as JSON of seconds by name. The loop
is asyncio's, whose callbacks can be measured; other threads and processes do not count.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Final

import cometmq.loop

FILE: Final = "COMETMQ_HOLDS"
_SHORT_S: Final = 0.001
_longest: dict[str, float] = {}
_run = asyncio.events.Handle._run


def _name(callback: Any, given: tuple[Any, ...]) -> str:
    """The name of what a handle calls; a task is named after its coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"{owner.get_name()}: {getattr(owner.get_coro(), '__qualname__', '')}"
    inner = getattr(callback, "func", callback)
    name = getattr(inner, "__qualname__", type(inner).__name__)
    arguments = [getattr(one, "__qualname__", type(one).__name__) for one in given[:1]]
    return f"{name}({', '.join(arguments)})"


def _timed(handle: Any) -> None:
    called = handle._callback, handle._args or ()  # a handle that is cancelled meanwhile forgets them
    began = time.thread_time()
    _run(handle)
    took = time.thread_time() - began
    if took > _SHORT_S:
        name = _name(*called)
        _longest[name] = max(_longest.get(name, 0.0), took)


def _write(path: Path) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(_longest), encoding="utf-8")
    _longest.clear()
    fresh.replace(path)


def read(pid: int, path: Path, seconds: float = 30.0) -> dict[str, float]:
    """The longest hold of each callback of a process since the last call, in seconds.

    :raises TimeoutError: the process does not write the file.
    """
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
            return found
        time.sleep(0.01)
    raise TimeoutError("the broker does not tell what held its loop")


def main() -> None:
    """Run the command with the measuring loop."""
    path = Path(os.environ[FILE])
    asyncio.events.Handle._run = _timed  # type: ignore[assignment,method-assign]
    cometmq.loop.fastest_loop = lambda: asyncio.new_event_loop
    signal.signal(signal.SIGUSR1, lambda *_: _write(path))
    from cometmq.cli.main import main as command

    command()


if __name__ == "__main__":
    main()
