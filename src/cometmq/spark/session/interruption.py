"""Ctrl-C in a Spark driver: one KeyboardInterrupt, no tracebacks, and a session that can still be stopped.

PySpark's own handler asks the JVM first to cancel its jobs, over a connection that may be in use, which ends in
tracebacks. A driver that makes its session and stops it at the end need not ask. So :func:`interrupt_at_once` puts
another handler in its place, which also takes the connection of the call under way from py4j:

py4j (0.10.9.9, with PySpark 4.3.0), when a call is interrupted, has the JVM close all connections of the process once
that call is over there. A call of another thread is then made twice: measured, a semaphore that one thread waits for
has two waiters in the JVM, in every run of
``test_an_interruption_of_one_call_leaves_other_calls_of_the_jvm_alone``; and calls that stop the session fail now and
then with "Answer from Java side is empty". py4j does this only when the connection has a socket, and has no setting
for it, so the handler removes the socket: py4j opens another connection for the next call.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final

silenced: Final = threading.Event()
"""Set when the session is about to end: the JVM's last words are not shown."""
_interrupted: Final = threading.Event()


def forget_interruptions() -> None:
    """Begin anew, for another session of this process."""
    silenced.clear()
    _interrupted.clear()


@contextlib.contextmanager
def interruption_put_off() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block.

    A JVM whose starter ends before it has learnt the JVM's port stays for ever. A handler that is installed within the
    block, as PySpark's context does, is removed at its end. Outside of the main thread, where no signal arrives,
    nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def silence_spark() -> None:
    """Show nothing more of what JVM and py4j say, since tasks end from now on because the driver ends them."""
    silenced.set()
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)


def interrupt_at_once() -> None:
    """Let Ctrl-C raise KeyboardInterrupt and silence py4j and the JVM; outside of the main thread do nothing."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        silence_spark()
        _interrupted.set()
        _take_connection()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)
        logging.getLogger().addFilter(_is_no_interruption)


@contextlib.contextmanager
def ends_interrupted() -> Iterator[None]:
    """Raise KeyboardInterrupt for what fails within the block after Ctrl-C: PySpark's clean-up may fail in any way."""
    try:
        yield
    except Exception as error:
        if _interrupted.is_set():
            raise KeyboardInterrupt from error
        raise


def _take_connection() -> None:
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        connection = SparkContext._gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.socket = None


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Drop what py4j logs about an interruption at the root logger, with a traceback."""
    return record.msg != "KeyboardInterrupt while sending command."
