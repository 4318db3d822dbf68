"""A task to run as the body of a message: JSON that names the task's function and contains its arguments."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any, Final

import msgspec
from django.utils.module_loading import import_string

from cometmq.client import IllegalMessageError, Message
from cometmq.errors import CometMQError
from cometmq.integrations.django.api import Task
from cometmq.integrations.django.options import BackendOptions

MAX_DELAY: datetime.timedelta = datetime.timedelta(days=2)
"""Longest delay of a message: Apache's brokers accept three days. The worker delays a task again until it is due."""
MAX_PATH_CHARS: Final = 1_000
"""Maximum length of a task's path in a message, which is a part of log lines."""
_ID: re.Pattern[str] = re.compile(r"[a-zA-Z0-9]{1,64}")


class OrderError(CometMQError):
    """A message's body is no task."""


class TaskPathError(CometMQError):
    """The function that a task names is not a task of this project."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A task to run."""

    id: str
    path: str
    """Module and name of the task's function."""
    args: list[Any]
    kwargs: dict[str, Any]
    queue_name: str
    priority: int = 0
    run_after: datetime.datetime | None = None
    enqueued_at: datetime.datetime | None = None
    stored: bool = True
    """True if the task has a row in the table of results."""

    def body(self) -> bytes:
        """Return the body of the message."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        for name in ("run_after", "enqueued_at"):
            fields[name] = None if fields[name] is None else fields[name].isoformat()
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "surrogatepass")  # as json.loads decodes it

    def message(self, options: BackendOptions) -> Message:
        """Return the message, which the broker holds until the task is due.

        The delay is a time span, so that a difference between this machine's clock and the broker's has no effect.

        :raises IllegalMessageError: the message is larger than ``max_message_bytes``.
        """
        body = self.body()
        if len(body) > options.max_message_bytes:
            raise IllegalMessageError(
                f"the task {self.path} with its arguments has {len(body):,} bytes, and max_message_bytes is "
                f"{options.max_message_bytes:,}; nothing was stored or sent",
                "store large data elsewhere and pass its key, or raise max_message_bytes and the broker's "
                "maxMessageSize",
            )
        return Message(
            options.topic(self.queue_name),
            body,
            keys=[self.id],
            priority=options.level(self.priority),
            delay=delay_until(self.run_after),
        )

    def task(self, backend: str) -> Any:
        """Return the task with the options with which it was enqueued.

        :raises TaskPathError: there is no such task.
        """
        return task_at(self.path).using(
            priority=self.priority, queue_name=self.queue_name, run_after=self.run_after, backend=backend
        )


def delay_until(due: datetime.datetime | None) -> datetime.timedelta | None:
    """Return the delay of a message that is sent now, or ``None`` if the time has come."""
    if due is None:
        return None
    left = due - datetime.datetime.now(due.tzinfo)
    return min(left, MAX_DELAY) if left > datetime.timedelta() else None


def read_order(body: bytes) -> Order:
    """Read the body of a message.

    :raises OrderError: it is no task.
    """
    try:
        order = msgspec.convert(json.loads(body), Order)
    except (ValueError, RecursionError) as error:  # msgspec's and JSON's errors are ValueErrors
        raise OrderError(f"the body is no task: {str(error)[:300]}") from error
    if _ID.fullmatch(order.id) is None:  # a database refuses some characters, as if it had failed
        raise OrderError("the body is no task: its id has other characters than letters and digits, or too many")
    if len(order.path) > MAX_PATH_CHARS:
        raise OrderError(f"the body is no task: its path has more than {MAX_PATH_CHARS:,} characters")
    return order


def task_at(path: str) -> Any:
    """Return the task with a path.

    :raises TaskPathError: the module cannot be imported, or has no such task.
    """
    try:
        found = import_string(path)
    except Exception as error:  # a module may raise anything when it is imported
        raise TaskPathError(
            f"the task {path[:300]} cannot be imported: {type(error).__name__}: {error}",
            next_step="deploy the code that defines the task to the workers, or keep its old name as an alias",
        ) from error
    if not isinstance(found, Task):
        raise TaskPathError(f"{path[:300]} is not a task", next_step="decorate the function with @task")
    return found
