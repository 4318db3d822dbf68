"""The audit log: a bounded queue of entries, and a thread that writes them to files.

Theory of operation. The event loop encodes an entry and puts it into the queue; it never waits for the disk. The thread
appends all pending entries. While it cannot write (for example because the disk is full), it keeps the entries and
tries again every second.

Fault model. The queue is bounded in bytes. Its last quarter is reserved for entries about administration and account
changes, so that a flood of denials cannot displace them. An entry that does not fit is counted, and the next line
reports the number of missing entries. A crash of the process loses the latest entries; a crash of the machine also
loses entries that the system had not yet written to the disk.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from cometmq.auth.audit.entry import Entry, encoded, time_text
from cometmq.auth.audit.files import RotatedFile
from cometmq.auth.limits import MAX_AUDIT_QUEUE_BYTES
from cometmq.auth.model import AuthError
from cometmq.clock import Clock
from cometmq.errors import reason_of
from cometmq.threads import in_thread

_log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0
"""Pause before writing is retried, in real time because a thread waits."""
_STOP_SECONDS: Final = 5.0
_OTHERS_BYTES: Final = MAX_AUDIT_QUEUE_BYTES * 3 // 4


class AuditLog:
    """An audit log that writes entries to rotated files.

    :param server: the name of the server, which is written in every entry.
    """

    def __init__(self, path: Path, *, size: int, count: int, server: str, clock: Clock) -> None:
        self._file = RotatedFile(path, size, count)
        self._server = server
        self._clock = clock
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._queue: list[bytes] = []
        self._bytes = 0
        self._lost = 0
        self.written = 0
        """The number of entries written to the audit log."""
        self.lost = 0
        """The number of entries dropped because the queue was full."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Open the file and start the thread.

        :raises AuthError: the file cannot be opened.
        """
        try:
            self._file.open()
        except OSError as error:
            raise AuthError(
                f"the audit log {self._file.path} cannot be opened: {reason_of(error)}",
                next_step="set auditLogPath to a file that the server may write",
            ) from None
        self.put({"event": "started"}, must=True)
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Write pending entries for up to five seconds, then stop."""
        if self._thread is None:
            return
        self.put({"event": "stopped"}, must=True)
        self._stopping.set()
        self._wake.set()
        thread, self._thread = self._thread, None
        await in_thread(thread.join, _STOP_SECONDS)
        if thread.is_alive() or self._queue:
            _log.error("entries for the audit log %s are lost: they could not be written in time", self._file.path)

    def put(self, entry: Entry, *, must: bool = False) -> None:
        """Add an entry to the queue.

        :param must: if true, the entry may use the part of the queue that is reserved for administration.
        """
        line = encoded({"time": time_text(self._clock.now_ms()), "server": self._server, **entry})
        with self._lock:
            if self._bytes + len(line) > (MAX_AUDIT_QUEUE_BYTES if must else _OTHERS_BYTES):
                self._lost += 1
                self.lost += 1
                return
            self._queue.append(line)
            self._bytes += len(line)
        self._wake.set()

    @property
    def waiting_bytes(self) -> int:
        """Return the total size of the entries that are not written yet, in bytes."""
        return self._bytes

    # --- the thread ---------------------------------------------------------------------------
    def _run(self) -> None:
        is_failing = False
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._queue or self._lost:
                is_last = self._stopping.is_set()
                try:
                    self._write()
                except OSError as error:
                    if not is_failing:
                        _log.error("the audit log %s cannot be written: %s", self._file.path, reason_of(error))
                    is_failing = True
                    if is_last:
                        break
                    self._stopping.wait(RETRY_SECONDS)
                else:
                    if is_failing:
                        _log.warning("the audit log %s can be written again", self._file.path)
                    is_failing = False
            if self._stopping.is_set():
                self._file.close()
                return

    def _write(self) -> None:
        with self._lock:
            lines, lost = self._queue[:], self._lost
        waiting = len(lines)
        if lost:
            entry = {"event": "lost", "entries": lost, "why": "the queue of the audit log was full"}
            lines.append(encoded({"time": time_text(self._clock.now_ms()), "server": self._server, **entry}))
        done = self._file.write(lines)
        with self._lock:
            taken = min(done, waiting)
            self.written += taken
            self._bytes -= sum(map(len, self._queue[:taken]))
            del self._queue[:taken]
            if lost and done == len(lines):
                self._lost -= lost
