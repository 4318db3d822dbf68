"""The options of the backend: ``TASKS[alias]["OPTIONS"]`` in Django's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from cometmq.client import Security
from cometmq.client.route import namesrv_addresses
from cometmq.errors import CometMQError
from cometmq.integrations.names import topic_of
from cometmq.limits import MAX_MESSAGE_BYTES

PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100
"""The range of Django's priorities."""
MAX_LEVELS: Final = PRIORITY_MAX - PRIORITY_MIN + 1
MAX_ATTEMPTS: Final = 16


class OptionError(CometMQError, ValueError):
    """An option of the backend has an unknown name, or a value that is not allowed."""


@dataclass(frozen=True, kw_only=True)
class BackendOptions:
    """The options of one backend.

    :raises OptionError: a value is not allowed.
    """

    namesrv: str | None = None
    """Nameservers, ``host:port;host:port``; by default ``$NAMESRV_ADDR`` or, if it is not set, ``127.0.0.1:9876``."""
    prefix: str = "django"
    """The consumer group of all workers, and the beginning of the topics' names: ``<prefix>-<queue>``."""
    security: Security | None = None
    """Credentials and TLS options; by default from the environment."""
    results: bool = True
    """If true, tasks and their results are stored in a table of the database."""
    database: str = "default"
    """The alias of this database. A task is sent when the current transaction in it commits."""
    max_attempts: int = 3
    """Number of times a task is started: again after a worker died, or after an error if ``retry_delay_s`` is set. At
    most 16, because the broker makes a message that was delivered again 16 times a dead letter.
    """
    retry_delay_s: float | None = None
    """Seconds until a task that raised an error is started again, doubled each time; by default it has failed."""
    max_running_s: float = 86_400.0
    """Seconds for which a running task belongs to its worker; a longer one may be started again elsewhere."""
    invisible_s: float = 60.0
    """Seconds after which another worker gets the task of a worker that died, unless the broker is CometMQ's and sees
    that the worker's connections have closed: then it is one second.
    """
    priority_levels: int = 21
    """Number of queues of a topic, to which the priorities -100 to 100 are distributed; 201 distinguishes them all."""
    send_timeout_s: float = 3.0
    """Time limit in seconds for sending a task."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum size of a task's message in bytes; the brokers have their own limit (``maxMessageSize``)."""
    console: str | None = None
    """The console's address, to which the admin's page of a task has a link."""

    def __post_init__(self) -> None:
        topic_of(self.prefix, "default")
        for name, least, most in (
            ("max_attempts", 1, MAX_ATTEMPTS),
            ("invisible_s", 10, 43_200),
            ("max_running_s", 10, 30 * 86_400),
            ("priority_levels", 1, MAX_LEVELS),
            ("send_timeout_s", 0.1, 600),
            ("max_message_bytes", 1_000, 128 * 1024 * 1024),
        ):
            _check_number(name, getattr(self, name), least, most)
        if self.retry_delay_s is not None:
            _check_number("retry_delay_s", self.retry_delay_s, 0, 86_400)
        for name, kind in (("results", bool), ("database", str)):
            if not isinstance(getattr(self, name), kind):
                raise _wrong(name, f"a {kind.__name__}", getattr(self, name))
        if self.console is not None and not _is_address(self.console):
            raise _wrong("console", "an address such as 'https://console.example.com:8088'", self.console)
        if not isinstance(self.namesrv, str | None):
            raise _wrong("namesrv", "a str or None", self.namesrv)
        try:
            namesrv_addresses(self.namesrv)
        except ValueError as error:
            place = "the option namesrv" if self.namesrv else "$NAMESRV_ADDR"
            raise OptionError(f"{place} is wrong: {error}", next_step="write host:port;host:port") from None
        if not isinstance(self.security, Security | None):
            raise _wrong("security", "a Security or None", type(self.security))  # the value may be a secret

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> BackendOptions:
        """Check the names and values of ``OPTIONS``.

        :raises OptionError: a name is unknown, or a value is not allowed.
        :raises QueueNameError: the prefix is not allowed.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(map(str, options.keys() - set(known)))
        if unknown:
            raise OptionError(f"unknown options: {', '.join(unknown)}", next_step=f"the options are {', '.join(known)}")
        return cls(**options)

    def topic(self, queue: str) -> str:
        """Return the topic of a queue.

        :raises QueueNameError: the queue's name cannot be part of a topic's name.
        """
        return topic_of(self.prefix, queue)

    def level(self, priority: int) -> int:
        """Return the priority of a message, a queue of the topic, for the priority of a task."""
        return (priority - PRIORITY_MIN) * (self.priority_levels - 1) // (PRIORITY_MAX - PRIORITY_MIN)


def _is_address(value: object) -> bool:
    """Return whether a value is the address of a page; a link to ``javascript:`` would run in the admin's page."""
    return isinstance(value, str) and re.fullmatch(r"https?://[^\s/]+(/\S*)?", value) is not None


def _check_number(name: str, value: object, least: float, most: float) -> None:
    whole = isinstance(least, int) and name in ("max_attempts", "priority_levels", "max_message_bytes")
    kind = int if whole else int | float
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value <= most:
        number = "whole number" if whole else "number"
        raise _wrong(name, f"a {number} from {least:,} to {most:,}", value)


def _wrong(name: str, wanted: str, value: object) -> OptionError:
    return OptionError(
        f"the option {name} must be {wanted}, not {value!r:.100}",
        next_step="correct it, or remove it to use its default",
    )
