"""Handles Ctrl-C in a Spark driver: it raises one KeyboardInterrupt without other tracebacks, and the session can still
be stopped.

PySpark's own handler first asks the JVM to cancel its jobs, over a connection that may be in use, which causes
tracebacks. A driver that creates its session and stops it at the end does not need this. So :func:`interrupt_at_once`
replaces the handler with one that also removes the current call's connection from py4j.

The reason: when a call is interrupted, py4j (0.10.9.9, with PySpark 4.3.0) makes the JVM close all of the process's
connections after that call. A call from another thread is then made twice: a semaphore for which one thread waits has
two waiters in the JVM in every run of ``test_an_interruption_of_one_call_leaves_other_calls_of_the_jvm_alone``; and
calls that stop the session sometimes fail with "Answer from Java side is empty". py4j does this only if the connection
has a socket, and no setting prevents it. So the handler removes the socket, and py4j opens another connection for the
next call.

A signal handler that raises anything else than an Exception or KeyboardInterrupt, for example SystemExit, leaves a
call's connection open. py4j gives each thread one connection, so each later call would get the answer of the call
before it. :func:`drop_interrupted_call` and :func:`ensure_in_step` close such a connection.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

silenced: Final = threading.Event()
"""Event that is set when the session is about to end, so that the JVM's last messages are not shown."""
_interrupted: Final = threading.Event()
_numbers: Final = itertools.count(1)


def forget_interruptions() -> None:
    """Reset the state for another session in this process."""
    silenced.clear()
    _interrupted.clear()


@contextlib.contextmanager
def interruption_put_off() -> Iterator[None]:
    """Defer Ctrl-C until the end of the block.

    If this process ended before it knew the JVM's port, the JVM would never stop. If a handler is installed within the
    block, for example by PySpark's context, it is removed at the end. Only the main thread receives signals, so this
    function does nothing in other threads.
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
    """Silence the JVM and py4j, since tasks will now fail because the driver is ending."""
    silenced.set()
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)


def interrupt_at_once() -> None:
    """Make Ctrl-C raise KeyboardInterrupt and silence py4j and the JVM. Do nothing in any thread except the main
    thread.
    """

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
    """Raise KeyboardInterrupt for any failure after Ctrl-C, since PySpark's clean-up can fail in many ways."""
    try:
        yield
    except Exception as error:
        if _interrupted.is_set():
            raise KeyboardInterrupt from error
        raise


def drop_interrupted_call() -> bool:
    """Close this thread's connection to the JVM if its last call was interrupted before the answer arrived.

    py4j opens another connection for the next call. The JVM completes the interrupted call and drops its answer.

    :return: True if there was such a connection.
    """
    connection = _connection()
    if connection is None or connection.socket is None or not connection.initiated_from_client:
        return False
    if connection in tuple(connection.java_client.deque) or _is_in_call(connection):
        return False  # py4j keeps the connections there whose last call has been answered
    connection.close()
    return True


def ensure_in_step() -> None:
    """Close this thread's connection to the JVM if it gives the answers of earlier calls; see
    :func:`drop_interrupted_call`.
    """
    connection = _connection()
    if drop_interrupted_call() or connection is None or connection.socket is None or _is_in_call(connection):
        return
    number = next(_numbers)
    answer = connection.java_client.send_command(f"c\nz:java.lang.Math\nabs\ni{number}\ne\n")
    if answer != f"yi{number}":
        connection.close()


def activate(session: SparkSession) -> None:
    """Make this the active session of the current thread; do nothing with Spark Connect.

    Spark looks up the Python data source of a write in the active session of the JVM's thread. The connection of a new
    thread, or one that was opened after an interruption, has no active session until PySpark happens to set it.
    """
    java_session = getattr(session, "_jsparkSession", None)
    if java_session is not None:
        session._get_j_spark_session_class(session._jvm).setActiveSession(java_session)


def _is_in_call(connection: Any) -> bool:
    """Tell whether this function runs below a call of that connection: in a callback or in a signal handler."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "send_command" and frame.f_locals.get("self") is connection:
            return True
        frame = frame.f_back
    return False


def _take_connection() -> None:
    connection = _connection()
    if connection is not None:
        connection.socket = None


def _connection() -> Any:
    """Return this thread's connection to the JVM, or None. Without pinned threads, no thread has its own."""
    from pyspark import SparkContext

    client: Any = getattr(SparkContext._gateway, "_gateway_client", None)
    return client.get_thread_connection() if hasattr(client, "get_thread_connection") else None


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Drop the tracebacks that py4j logs to the root logger after an interruption."""
    return record.msg != "KeyboardInterrupt while sending command."
