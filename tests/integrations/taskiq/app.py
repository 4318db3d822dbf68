"""Tasks for the tests, as a user's module has them; ``NAMESRV_ADDR`` and ``INVISIBLE_S`` are in the environment."""

import asyncio
import os
from pathlib import Path

from cometmq.integrations.taskiq import CometMQBroker, QueueOptions

broker = CometMQBroker(options=QueueOptions(prefix="taskiq", invisible_s=float(os.environ.get("INVISIBLE_S", "600"))))


@broker.task
async def note(path: str, text: str) -> None:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


@broker.task
async def hang_once(path: str) -> None:
    """Hang for ever in the first process that runs it."""
    await note(path, "begun")
    if Path(path).read_text().count("begun") == 1:
        await asyncio.sleep(3600)
    await note(path, "done")
