"""The producers of a process: one for each backend's options, shared by all threads, and new ones after a fork."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from django.db import connections as databases

from cometmq.client import AccessDeniedError, Message, ProducerConfig
from cometmq.client.retries import RETRY_RESPONSE_CODES
from cometmq.client.sync import SyncProducer
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.integrations.attempts import Attempts
from cometmq.integrations.django.options import BackendOptions
from cometmq.integrations.queues import AWAY, ensure_topic
from cometmq.threads import call_in_forked_children

logger: Final = logging.getLogger("cometmq.django")

SEND_ATTEMPTS: Final = 3
"""Maximum number of times a message is sent; a broker that is stopping is asked until the time is up."""


class Connection:
    """A started producer, and the topics that it has seen.

    A repeated send is a message with another ID. The producer's own retries have the same ID, by which the row of a
    task knows the message that comes again after its worker died: so both copies would run.
    """

    def __init__(self, options: BackendOptions) -> None:
        self._options = options
        self._topics: set[str] = set()
        config = ProducerConfig(
            send_timeout_s=options.send_timeout_s,
            max_message_bytes=options.max_message_bytes,
            retry_times_when_send_failed=0,
        )
        self._producer = SyncProducer(
            f"{options.prefix}-producer", options.namesrv, config=config, security=options.security
        )
        self._producer.start()

    def send(self, message: Message) -> str:
        """Send a message and return its id. Its topic is created if it does not exist.

        :raises CometMQError: the message was not sent, or nobody knows.
        """
        if message.topic not in self._topics:
            options = self._options
            ensure_topic(options.namesrv, options.security, message.topic, options.priority_levels)
            self._topics.add(message.topic)
        attempts = Attempts(SYSTEM_CLOCK, self._options.send_timeout_s, others=SEND_ATTEMPTS, may_repeat=_may_repeat)
        while True:
            try:
                return self._producer.send(message, timeout_s=attempts.left_s).msg_id
            except CometMQError as error:
                pause_s = attempts.pause_s(error)
            time.sleep(pause_s)

    def close(self) -> None:
        """Close the producer."""
        self._producer.close()


class Connections:
    """The connections of this process by the backend's options."""

    def __init__(self) -> None:
        self._forget()
        call_in_forked_children(self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[BackendOptions, Connection] = {}

    def of(self, options: BackendOptions) -> Connection:
        """Return the connection with these options.

        :raises CometMQError: no nameserver answers.
        """
        with self._lock:
            if options not in self._open:
                self._open[options] = Connection(options)
            return self._open[options]

    def close(self) -> None:
        """Close all connections; the next task opens a new one."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


CONNECTIONS: Final = Connections()


def is_away(failure: CometMQError | None) -> bool:
    """Return whether a request failed because no server answers, so that others would fail as well."""
    return isinstance(failure, AWAY)


def _may_repeat(failure: CometMQError) -> bool:
    """Return whether a repeated send may succeed, as the producer decides."""
    if isinstance(failure, AccessDeniedError):
        return False
    return is_away(failure) or getattr(failure, "code", None) in RETRY_RESPONSE_CODES


def close_old_databases() -> None:
    """Close this thread's database connections that are broken or too old, as Django does around a request.

    A connection inside a transaction is the caller's, for example that of a ``TestCase``.
    """
    for database in databases.all(initialized_only=True):
        if not database.in_atomic_block:
            database.close_if_unusable_or_obsolete()
