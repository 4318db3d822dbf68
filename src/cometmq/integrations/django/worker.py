"""A worker: receives tasks from the topics of its queues, and runs them in its threads.

It takes only as many messages as it has free threads, so that no task waits in a busy worker. A message stays
invisible for other workers while its task runs. If the worker dies, another one receives it: within a second if the
broker is CometMQ's and sees that the worker's connections have closed, otherwise after ``invisible_s``.

The first SIGTERM or SIGINT ends the worker when its tasks are done; a second one, or SIGQUIT, at once: the tasks that
it interrupts are given back.
"""

from __future__ import annotations

import datetime
import logging
import os
import queue
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

from django.db import Error as DatabaseError
from django.db import reset_queries
from django.utils.crypto import get_random_string

from cometmq.client import AccessDeniedError, SimpleConsumerConfig
from cometmq.client.simple.config import MAX_MESSAGES
from cometmq.client.sync import SyncSimpleConsumer
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.integrations.django import results
from cometmq.integrations.django.backend import CometMQBackend
from cometmq.integrations.django.connections import CONNECTIONS, close_old_databases, is_away
from cometmq.integrations.django.running import Delivery, Running, Verdict, What
from cometmq.integrations.queues import ensure_topic, log_lost
from cometmq.message.compression import DecompressionError
from cometmq.visible import visible

logger: Final = logging.getLogger("cometmq.django")

WAIT_S: Final = 15.0
"""Seconds for which a request for messages waits."""
BURST_WAIT_S: Final = 1.0
"""Seconds without a task after which a worker with ``burst`` ends."""
OUTBOX_PERIOD_S: Final = 30.0
OUTBOX_AGE: Final = datetime.timedelta(seconds=10)
"""Tasks that were enqueued before this time, and never sent, are sent by the worker."""
OUTBOX_TASKS: Final = 100
"""Maximum number of tasks that a worker sends at one time."""
PAUSES_S: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds to wait after errors of a broker or the database in a row."""
GIVE_BACK_S: Final = 10.0
"""Seconds after which a task that could not be started or ended is delivered again, doubled each time."""


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """The queues of a worker, its threads, and when it ends."""

    queues: tuple[str, ...]
    threads: int = 1
    burst: bool = False
    """If true, end when the queues are empty."""
    max_tasks: int | None = None
    """Number of tasks after which the worker ends."""
    ends_with_parent: bool = False
    """If true, end when the process that started this one has died."""


class Worker:
    """Runs tasks of a backend until it is stopped."""

    def __init__(self, backend: CometMQBackend, settings: WorkerSettings) -> None:
        self._backend = backend
        self._options = backend.settings
        self._settings = settings
        self.id: Final = f"{socket.gethostname()[:32]}-{os.getpid()}-{get_random_string(6)}"
        self._is_stopping = False
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        """An entry for each task that has ended in the pool; a signal handler may put one into it at any time."""
        self._stopped: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Has an entry from the moment at which the worker is stopped."""
        self._tasks: dict[int, Any] = {}
        """The messages of running tasks, by the identity of the message."""
        self._begun = 0
        self._failures = 0
        self._next_outbox = 0.0
        self._parent = os.getppid() if settings.ends_with_parent else None
        self._running = Running(type(backend), backend.alias, self._options, self.id, self._wait)
        self._pool = ThreadPoolExecutor(settings.threads, "cometmq-task") if settings.threads > 1 else None
        topics = {self._options.topic(name): "*" for name in settings.queues}
        self._consumer = SyncSimpleConsumer(
            self._options.prefix,
            topics,
            self._options.namesrv,
            config=SimpleConsumerConfig(
                invisible_s=self._options.invisible_s,
                renew_up_to_s=self._options.max_running_s,
                gives_back_when_gone=True,
                retry_s=5.0,
            ),
            on_lost=log_lost,
            security=self._options.security,
        )

    def run(self) -> None:
        """Run tasks until the worker is stopped, or has done what it was started for.

        :raises CometMQError: the broker refuses, or does not answer when the worker starts.
        """
        with self._signals():
            self._prepare()
            if not self._is_stopping:
                with self._consumer:
                    self._work()
        logger.info("worker %s has ended after %d tasks", self.id, self._begun)

    def _prepare(self) -> None:
        """Create the topics that do not exist, and wait for a broker if the worker is to stay."""
        options, topics = self._options, [self._options.topic(name) for name in self._settings.queues]
        while not self._is_stopping and topics:
            try:
                ensure_topic(options.namesrv, options.security, topics[-1], options.priority_levels)
                topics.pop()
            except AccessDeniedError:
                raise
            except CometMQError as error:
                if self._settings.burst:
                    raise
                self._pause("looking for the topics of the queues", error)

    def _work(self) -> None:
        logger.info("worker %s runs tasks of %s", self.id, ", ".join(f"queue {name}" for name in self._settings.queues))
        try:
            self._loop()
            if self._tasks:
                logger.info("worker %s is stopping when %d running tasks have ended", self.id, len(self._tasks))
        finally:
            if self._pool is not None:
                self._pool.shutdown()

    def stop(self) -> None:
        """End the worker when its tasks are done; signal handlers may call this."""
        self._is_stopping = True
        self._stopped.put(None)
        self._ended.put(None)
        self._consumer.stop()

    # --- receiving ---

    def _loop(self) -> None:
        while not self._is_stopping and self._parent in (None, os.getppid()):
            free = self._settings.threads - len(self._tasks)
            if self._settings.max_tasks is not None:
                free = min(free, self._settings.max_tasks - self._begun)
            if free <= 0:
                if not self._tasks:
                    return  # max_tasks
                with suppress(queue.Empty):
                    self._ended.get(timeout=1.0)
                continue
            self._send_unsent()
            messages = self._receive(min(free, MAX_MESSAGES))
            if messages == [] and self._settings.burst and not self._tasks:
                return
            for message in messages or ():
                self._begin(message)

    def _receive(self, count: int) -> list[Any] | None:
        """Return messages, or ``None`` after an error.

        :raises CometMQError: the worker is to end soon, and a broker refuses.
        """
        wait_s = BURST_WAIT_S if self._settings.burst else WAIT_S
        try:
            messages: list[Any] = self._consumer.receive(count, wait_s=wait_s)
        except CometMQError as error:
            if self._settings.burst:
                raise
            self._pause("receiving tasks", error)
            return None
        return messages

    def _pause(self, doing: str, error: Exception) -> None:
        """Wait after an error, longer after each one in a row."""
        seconds = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        logger.error("%s failed, the worker tries again in %g s: %s", doing, seconds, error)
        self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """Wait until the worker is stopped, at most some seconds."""
        with suppress(queue.Empty):
            self._stopped.put(self._stopped.get(timeout=seconds))

    # --- tasks ---

    def _begin(self, message: Any) -> None:
        self._begun += 1
        self._tasks[id(message)] = message
        if self._pool is None:
            self._handle(message)
        else:
            self._pool.submit(self._handle, message)

    def _handle(self, message: Any) -> None:
        """Run the task of a message, and do what is to be done with the message."""
        try:
            close_old_databases()
            self._settle(message, self._verdict(message))
            self._failures = 0
        except DatabaseError as error:
            logger.error(
                "message %s: the database fails, the task is delivered again: %s", visible(message.msg_id), error
            )
            self._give_back(message)
            self._pause("using the database", error)
        except CometMQError as error:
            logger.error("message %s: the broker may deliver its task again: %s", visible(message.msg_id), error)
            self._give_back(message)
        except Exception:
            logger.exception("message %s: the broker delivers its task again", visible(message.msg_id))
            self._give_back(message)
        finally:
            del self._tasks[id(message)]
            if self._pool is not None:
                self._ended.put(None)
            reset_queries()  # with DEBUG, they would be kept
            close_old_databases()

    def _verdict(self, message: Any) -> Verdict:
        try:
            body = message.body
        except DecompressionError as error:
            return Verdict(What.DEAD, reason=str(error))
        return self._running.run(Delivery(body, message.msg_id, message.delivery_attempt))

    def _settle(self, message: Any, verdict: Verdict) -> None:
        if verdict.what is What.LATER:
            self._consumer.change_invisible(message, verdict.seconds)
            return
        if verdict.what is What.DEAD:
            logger.error("message %s becomes a dead letter: %s", visible(message.msg_id), visible(verdict.reason))
            self._consumer.reject(message)
            return
        if verdict.what is What.DELAY_AGAIN and verdict.order is not None:
            CONNECTIONS.of(self._options).send(verdict.order.message(self._options))
        self._consumer.ack(message)

    def _give_back(self, message: Any) -> None:
        """Have a task delivered again later; without this, its message would be renewed like that of a running task."""
        seconds = min(GIVE_BACK_S * 2.0 ** (message.delivery_attempt - 1), 3_600.0)
        try:
            self._consumer.change_invisible(message, seconds)
        except CometMQError as failure:
            logger.error("message %s: the broker may deliver its task again: %s", visible(message.msg_id), failure)

    def _send_unsent(self) -> None:
        """Send tasks that were enqueued but not sent, now and then."""
        if not self._options.results or SYSTEM_CLOCK.monotonic() < self._next_outbox:
            return
        self._next_outbox = SYSTEM_CLOCK.monotonic() + OUTBOX_PERIOD_S
        close_old_databases()
        try:
            for row in results.unsent(self._backend.alias, self._options.database, OUTBOX_AGE, OUTBOX_TASKS):
                failure = self._backend.send(results.order_of(row))
                logger.warning("task %s %s, which was not sent before, is %s", row.id, row.path, failure or "sent")
                if is_away(failure) or self._is_stopping:
                    break
        except DatabaseError as error:
            self._pause("looking for tasks that were not sent", error)
        finally:
            close_old_databases()

    # --- signals ---

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
        before: dict[signal.Signals, Any] = {number: signal.signal(number, self._signalled) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_stopping and number != signal.SIGQUIT:
            self.stop()
            return
        for message in list(self._tasks.values()):
            try:
                self._consumer.change_invisible(message, 0)
            except CometMQError as error:
                if is_away(error):
                    break  # each further one would take as long
        os._exit(128 + number)
