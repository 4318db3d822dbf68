"""The history of a test: what each client asked and was answered, in the words of Jepsen's queue and Kafka workloads.

All times are ``time.monotonic()`` of the one process that writes the history.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path


class Outcome(Enum):
    """What a client knows about its request."""

    OK = "ok"
    """It was done."""
    FAIL = "fail"
    """It was refused before anything was appended: it will never be read."""
    INFO = "info"
    """Unknown: no answer, a closed connection, or an answer of the kind "stored, but not replicated in time"."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """A queue of a topic."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.number}"


@dataclass(frozen=True, slots=True)
class Send:
    """One message of a producer; each message has a value that no other has.

    :param attempts: how often the client may have sent it.
    :param server: the member that answered.
    :param offset: the queue offset that was answered.
    :param log_offset: the place in the log that was answered.
    """

    client: str
    value: str
    queue: Queue
    began: float
    ended: float
    outcome: Outcome
    server: str = ""
    offset: int | None = None
    log_offset: int | None = None
    attempts: int = 1
    note: str = ""

    def __str__(self) -> str:
        place = "" if self.offset is None else f" at {self.offset}, log {self.log_offset}"
        return (
            f"{self.client} sends {self.value} to {self.queue} ({self.server}): {self.outcome.value}{place} {self.note}"
        )


@dataclass(frozen=True, slots=True)
class Poll:
    """One pull of a consumer that was answered: the messages from ``asked`` on."""

    client: str
    queue: Queue
    began: float
    ended: float
    asked: int
    read: tuple[tuple[int, str], ...]
    """Queue offset and value of each message, as they came."""
    server: str = ""

    def __str__(self) -> str:
        read = ", ".join(f"{offset}: {value}" for offset, value in self.read)
        return f"{self.client} polls {self.queue} from {self.asked} ({self.server}): {read or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Commit:
    """A group's committed offset: written, or read."""

    client: str
    group: str
    queue: Queue
    began: float
    ended: float
    is_write: bool
    offset: int
    outcome: Outcome = Outcome.OK
    server: str = ""

    def __str__(self) -> str:
        verb = "commits" if self.is_write else "reads the offset"
        return (
            f"{self.client} {verb} {self.offset} of {self.group} in {self.queue} ({self.server}): {self.outcome.value}"
        )


@dataclass(frozen=True, slots=True)
class Note:
    """A fault that began or ended."""

    began: float
    text: str

    @property
    def ended(self) -> float:
        """A note is a moment."""
        return self.began

    def __str__(self) -> str:
        return f"-- {self.text}"


Operation = Send | Poll | Commit | Note


@dataclass
class History:
    """The operations of all clients, which add to it from their threads."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, operation: Operation) -> None:
        """Add an operation that has ended."""
        with self._lock:
            self.operations.append(operation)

    def note(self, text: str) -> None:
        """Add a fault that begins or ends now."""
        self.add(Note(time.monotonic(), text))

    @property
    def sends(self) -> list[Send]:
        """All messages, in the order in which they began."""
        return sorted((one for one in self.operations if isinstance(one, Send)), key=lambda one: one.began)

    @property
    def polls(self) -> list[Poll]:
        """All pulls, in the order in which they began."""
        return sorted((one for one in self.operations if isinstance(one, Poll)), key=lambda one: one.began)

    @property
    def commits(self) -> list[Commit]:
        """All writes and reads of committed offsets, in the order in which they began."""
        return sorted((one for one in self.operations if isinstance(one, Commit)), key=lambda one: one.began)

    def in_order(self) -> list[Operation]:
        """Return all operations in the order in which they ended."""
        return sorted(self.operations, key=lambda one: one.ended)

    def lines(self) -> Iterator[str]:
        """Yield the history for people, with seconds since its beginning."""
        ordered = self.in_order()
        start = min((one.began for one in ordered), default=0.0)
        for one in ordered:
            took = "" if one.ended == one.began else f" +{(one.ended - one.began) * 1000:.0f} ms"
            yield f"{one.began - start:9.3f}{took:>10}  {one}"

    def write(self, path: Path) -> None:
        """Write the history for programs, one JSON object a line."""
        with path.open("w") as file:
            for one in self.in_order():
                file.write(json.dumps({"kind": type(one).__name__, **asdict(one)}, default=_text) + "\n")


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)
