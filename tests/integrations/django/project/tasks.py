"""Tasks that leave lines in a file, so that a test sees what ran, in which order and how often."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from django.db import connection, transaction
from tests.integrations.django.project.decorator import task

from cometmq.integrations.django.api import TaskContext


@task()
def add(one: int, two: int) -> int:
    return one + two


@task()
async def add_later(one: int, two: int) -> int:
    return one + two


@task()
def note(file: str, line: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")


@task()
def hold(file: str, line: str) -> str:
    """Leave a line, then wait for a file beside it."""
    note.func(file, line)
    go = Path(f"{file}.go")
    while not go.exists():
        time.sleep(0.01)
    return line


@task()
def die_once(file: str) -> str:
    """Kill the worker at the first attempt."""
    note.func(file, "attempt")
    if len(Path(file).read_text().splitlines()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@task()
def die(file: str) -> None:
    """Kill the worker."""
    note.func(file, "attempt")
    os.kill(os.getpid(), signal.SIGKILL)


@task()
def fail(text: str) -> None:
    raise ValueError(text)


@task()
def leave() -> None:
    raise SystemExit(3)


@task(takes_context=True)
def fail_until(context: TaskContext, attempt: int) -> int:
    if context.attempt < attempt:
        raise ValueError(f"attempt {context.attempt}")
    return int(context.attempt)


@task()
def return_object() -> object:
    return object()


@task()
def echo(value: Any) -> Any:
    return value


def no_task() -> None:
    raise AssertionError("nobody may call this")


@task()
def hide_table() -> None:
    """Have the database fail when the result is stored."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE cometmq_task RENAME TO away")


@task()
def stop_autocommit() -> None:
    """Leave the connection in another state than it was."""
    transaction.set_autocommit(False)


@task()
def lose_connection() -> None:
    """Have PostgreSQL end the connection of this task."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
