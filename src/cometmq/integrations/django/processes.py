"""Several workers, each in a process of its own, under one that starts them again."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

from django.db import connections

logger: Final = logging.getLogger("cometmq.django")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
_RESTART_S: Final = 1.0
"""Minimum life of a worker in seconds; one that dies earlier is started again after a pause."""


class Processes:
    """Worker processes, forked before anything is connected.

    A process that ends without an error is not started again. Signals are passed on to all.
    """

    def __init__(self, count: int, work: Callable[[], None]) -> None:
        self._count = count
        self._work = work
        self._started: dict[int, float] = {}
        self._is_stopping = False

    def run(self) -> None:
        """Start the processes; return when all have ended."""
        connections.close_all()
        before = {number: signal.signal(number, self._signalled) for number in _SIGNALS}
        try:
            while len(self._started) < self._count and not self._is_stopping:
                self._start()
            while self._started:
                self._ended(*os.wait())
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._is_stopping = True
        for pid in self._started:
            os.kill(pid, number)

    def _start(self) -> None:
        """Start a process, unless all are to end: a signal that comes now is passed on to this process, too."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if not self._is_stopping:
            pid = os.fork()
            if pid == 0:
                self._be_worker()
            self._started[pid] = time.monotonic()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)

    def _be_worker(self) -> NoReturn:
        """Work in the child, with the usual signal handlers until the worker sets its own."""
        code = 1
        try:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            self._work()
            code = 0
        except Exception as error:
            logger.error("a worker cannot run: %s", error)
        finally:
            logging.shutdown()
            os._exit(code)

    def _ended(self, pid: int, status: int) -> None:
        started = self._started.pop(pid, None)
        code = os.waitstatus_to_exitcode(status)
        if started is None or self._is_stopping or code == 0:
            return
        cause = f"by signal {-code}" if code < 0 else f"with code {code}"
        logger.error("worker process %d has ended %s; another one starts", pid, cause)
        if time.monotonic() - started < _RESTART_S:
            time.sleep(_RESTART_S)
        self._start()
