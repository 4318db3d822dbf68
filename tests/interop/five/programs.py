"""Apache's clients of RocketMQ 5 as programs: their commands, and the lines of JSON that they print."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.interop import builds

PATIENCE_S = 60


def java(version: str, program: str) -> list[str]:
    """A program of the Java client of a version."""
    built = builds.java_client_five(version)
    path = f"{built / 'classes'}:{built / 'lib'}/*"
    return [builds.java(), *builds.QUICK_JAVA, "-Xmx192m", "-cp", path, program]


def python(program: str) -> list[str]:
    """A program of the Python client."""
    return [str(builds.python_client_five() / "bin" / "python"), str(Path(__file__).parent / "python" / program)]


def node(program: str) -> list[str]:
    """A program of the Node client."""
    return ["node", str(builds.node_client_five() / program)]


def rust() -> list[str]:
    """The program of the Rust client."""
    return [str(builds.rust_client_five() / "debug" / "interop-rust-client-five")]


@contextmanager
def running(
    command: Sequence[str], environment: Mapping[str, str], errors: Path
) -> Iterator[tuple[subprocess.Popen[str], Events]]:
    """Run a program that tells events, and end it."""
    pipe = subprocess.PIPE
    with errors.open("w") as file:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=file, text=True, env=dict(environment))
    with process:
        told = Events(process)
        try:
            yield process, told
        finally:
            process.kill()
            told.join()


class Events:
    """The events that a program tells until it ends, in their order."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._changed = threading.Condition()
        self.all: list[tuple[str, str]] = []
        """Each event, and the body of its message."""
        self._reader = threading.Thread(target=self._read, args=(process,))
        self._reader.start()

    def bodies(self, event: str) -> list[str]:
        """The bodies of the messages of an event."""
        return [body for name, body in self.all if name == event]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition of the events holds.

        :raises TimeoutError: it does not in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, PATIENCE_S):
                raise TimeoutError(f"{what}: {self.all}")

    def join(self) -> None:
        """Wait for the end of a program that was ended."""
        self._reader.join()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"event"'):
                found = json.loads(line)
                with self._changed:
                    self.all.append((found["event"], found["body"]))
                    self._changed.notify_all()
