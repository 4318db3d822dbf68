"""Starts Spark's JVM with a filter on its standard error, which removes two meaningless messages.

Both appear in healthy jobs, and no option prevents them. Measured with PySpark 4.3.0 on Java 17:

* one line from Java at each start, ``WARNING: Using incubator modules: jdk.incubator.vector``: Spark itself loads that
  module;
* a traceback of about ten lines for each Python worker that Spark ends because it was idle for a minute:
  ``pyspark/daemon.py`` cannot write its last output (BrokenPipeError). A job of several minutes on two cores shows a
  few of them.

Log4j's settings do not affect these messages, since neither is logged.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING, Final

from cometmq.spark.session.interruption import forget_interruptions, interruption_put_off, silenced

if TYPE_CHECKING:
    from pyspark import SparkConf

_STDERR: Final = 2
_READ_BYTES: Final = 65_536
_LAST_WORDS_SECONDS: Final = 5.0
"""Maximum time to wait for the last output of a JVM that failed to start."""
_AT_EVERY_START: Final = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
_HEAD: Final = b"Traceback (most recent call last):\n"
_FRAME: Final = re.compile(rb'  File "[^"]*pyspark/daemon\.py", line \d+, in (manager|worker)\n')
_SOURCE: Final = b"    "
"""Prefix of a source line below a frame. If PySpark is in a zip file, frames have no source lines."""
_END: Final = b"BrokenPipeError: [Errno 32] Broken pipe\n"
_BEGINNINGS: Final = (_AT_EVERY_START, _HEAD, _END, b'  File "')
_LINE: Final = re.compile(rb"[^\r\n]*[\r\n]")
"""Line endings. A progress bar ends its lines without a line feed."""


def start_jvm(conf: SparkConf) -> None:
    """Start the JVM for this process's sessions, unless it is already running.

    The JVM's standard error passes through a :class:`Sieve` to this process's standard error.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    forget_interruptions()
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


def _pass_on(reading: int) -> None:
    sieve = Sieve()
    with contextlib.suppress(OSError):
        while data := os.read(reading, _READ_BYTES):
            if (passed := sieve.passed(data)) and not silenced.is_set():
                os.write(_STDERR, passed)
        os.write(_STDERR, sieve.rest())
    os.close(reading)


class Sieve:
    """Filters text that arrives in pieces of any size.

    Lines from several workers' tracebacks may be mixed.
    """

    def __init__(self) -> None:
        self._rest = b""
        """Beginning of a line that may still turn out to be a known line."""
        self._is_within = False
        """True if the beginning of the current line has been passed on."""
        self._heads = 0
        """Number of tracebacks whose first frame has not arrived yet."""
        self._frames = 0
        """Number of tracebacks whose last frame has arrived, but not their end."""
        self._is_below = False
        """True if a frame's source line may follow."""

    def passed(self, data: bytes) -> bytes:
        """Add a piece of text, and return the text that can be passed on now."""
        self._rest += data
        found = b""
        while line := _LINE.match(self._rest):
            self._rest = self._rest[line.end() :]
            found += line[0] if self._is_within else self._line(line[0])
            self._is_within = False
        if self._rest and (self._is_within or not self._may_be_known(self._rest)):
            found += self._held() + self._rest
            self._rest, self._is_within = b"", True
        return found

    def rest(self) -> bytes:
        """Return the text that is still held back when the input has ended."""
        held, self._rest = self._held() + self._rest, b""
        return held

    def _line(self, line: bytes) -> bytes:
        is_below, self._is_below = self._is_below, False
        if line == _HEAD:
            self._heads += 1
        elif frame := _FRAME.fullmatch(line):
            is_last = frame[1] == b"worker"
            self._frames += is_last
            self._heads = max(self._heads - is_last, 0)
            self._is_below = True
        elif line == _END and self._frames:
            self._frames -= 1
        elif is_below and line.startswith(_SOURCE):
            self._is_below = True
        elif line != _AT_EVERY_START:
            return self._held() + line
        return b""

    def _held(self) -> bytes:
        heads, self._heads = self._heads, 0
        return _HEAD * heads

    def _may_be_known(self, text: bytes) -> bool:
        is_source = self._is_below and text.startswith(_SOURCE[: len(text)])
        return is_source or any(text.startswith(known) or known.startswith(text) for known in _BEGINNINGS)
