"""Starts Spark's JVM so that its standard error has nothing but what a person should read."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

from cometmq.spark.jvm_stderr import Sieve

if TYPE_CHECKING:
    from pyspark import SparkConf

_STDERR: Final = 2
_READ_BYTES: Final = 65_536
_LAST_WORDS_SECONDS: Final = 5.0
"""How long to wait for what a JVM says that did not start."""


_unheard: Final = threading.Event()
_interrupted: Final = threading.Event()


def start_jvm(conf: SparkConf) -> None:
    """Start the JVM that sessions of this process will use, unless there is one already.

    What it writes to its standard error goes on to ours, through a :class:`Sieve`.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    _unheard.clear()
    _interrupted.clear()
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    reading, writing = os.pipe()
    passing_on = threading.Thread(target=_pass_on, args=(reading,), name="cometmq-spark-stderr", daemon=True)
    passing_on.start()
    try:
        try:
            with interruption_put_off():
                gateway = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
        finally:
            os.close(writing)
    except Exception:
        passing_on.join(_LAST_WORDS_SECONDS)
        raise
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


@contextlib.contextmanager
def interruption_put_off() -> Iterator[None]:
    """Let Ctrl-C wait for the end of the block: a JVM whose starter is gone before it has told its port stays for ever.

    Whoever makes another handler meanwhile, as PySpark's context does, has it for the block only.

    Outside of the main thread, where no signal arrives, nothing is done.
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


def ignore_what_ends() -> None:
    """From now on tasks end because they are told to: what JVM and py4j say of that is nobody's business."""
    _unheard.set()
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)


def interrupt_at_once() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, and what py4j and the JVM say of it be unheard.

    PySpark's own handler asks the JVM first to cancel its jobs, over a connection that may be in use: that shows as
    tracebacks. Who makes a session and stops it at the end need not ask. Outside of the main thread nothing is done.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        ignore_what_ends()
        _interrupted.set()
        _leave_connection()
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handle)
        logging.getLogger().addFilter(_is_no_interruption)


def _leave_connection() -> None:
    """Let the call under way have its connection for itself, so that py4j opens another one for the next.

    What py4j does instead, when it sees an interruption in a call, has the JVM close all connections once the call is
    over there: calls that come after it, such as those that stop the session, fail now and then with "Answer from Java
    side is empty".
    """
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        connection = SparkContext._gateway._gateway_client.get_thread_connection()
        if connection is not None:
            connection.socket = None


@contextlib.contextmanager
def ends_interrupted() -> Iterator[None]:
    """Let what fails within the block, after Ctrl-C has come, be the interruption that it follows from.

    PySpark was not written to be interrupted anywhere: what it does on its way out may fail.
    """
    try:
        yield
    except Exception as error:
        if _interrupted.is_set():
            raise KeyboardInterrupt from error
        raise


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """py4j logs it at the root, with a traceback."""
    return record.msg != "KeyboardInterrupt while sending command."


def _pass_on(reading: int) -> None:
    sieve = Sieve()
    with contextlib.suppress(OSError):
        while data := os.read(reading, _READ_BYTES):
            if (passed := sieve.passed(data)) and not _unheard.is_set():
                os.write(_STDERR, passed)
        os.write(_STDERR, sieve.rest())
    os.close(reading)
