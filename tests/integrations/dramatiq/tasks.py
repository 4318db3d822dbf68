"""Actors for the tests, as a user's module has them; ``NAMESRV_ADDR`` and ``INVISIBLE_S`` are in the environment."""

import os
import time
from pathlib import Path

import dramatiq

from cometmq.integrations.dramatiq import CometMQBroker, QueueOptions

dramatiq.set_broker(
    CometMQBroker(options=QueueOptions(prefix="dramatiq", invisible_s=float(os.environ.get("INVISIBLE_S", "600"))))
)


@dramatiq.actor
def note(path: str, text: str) -> None:
    """Append a line to a file."""
    with Path(path).open("a") as file:
        file.write(f"{text} {os.getpid()}\n")


@dramatiq.actor
def hang_once(path: str) -> None:
    """Hang for ever in the first process that runs it."""
    note.fn(path, "begun")
    if Path(path).read_text().count("begun") == 1:
        time.sleep(3600)
    note.fn(path, "done")
