"""A Java producer with its defaults: it asks for the route each 30 s, which decides when it finds another master."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from tests.helpers.waiting import wait_for
from tests.interop import builds

SOURCE: Final = Path(__file__).with_name("Send.java")


class JavaSender:
    """The acknowledged sends so far."""

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._sends: list[tuple[int, int]] = []

    def read(self) -> None:
        """Read what the program prints, until it ends."""
        for line in self._output:
            begun, _, ended = line.partition(" ")
            if begun.isdecimal():
                self._sends.append((int(begun), int(ended)))

    def seconds_to_first(self, since_ms: int) -> float | None:
        """Seconds from a wall time to the first acknowledgement of a send that was begun later."""
        ends = (ended for begun, ended in list(self._sends) if begun >= since_ms)
        return min(((end - since_ms) / 1000 for end in ends), default=None)


def _classes() -> tuple[Path, Path]:
    client = builds.java_client("5.5.0")

    def make(target: Path) -> None:
        command = [builds.tool("javac"), "-cp", f"{client / 'lib'}/*", "-d", str(target), str(SOURCE)]
        subprocess.run(command, check=True)

    return builds.built(builds.Build("java-sender", (SOURCE,), make)), client


@contextmanager
def sending(namesrv: str, topic: str) -> Iterator[JavaSender]:
    """Send inside the block; the first message was acknowledged before it begins."""
    classes, client = _classes()
    command = [builds.java(), *builds.QUICK_JAVA, "-cp", f"{classes}:{client / 'lib'}/*", "Send", namesrv, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        sender = JavaSender(process.stdout)
        thread = threading.Thread(target=sender.read)
        thread.start()
        try:
            wait_for(lambda: sender.seconds_to_first(0), "the Java producer sends")
            yield sender
        finally:
            process.kill()
            thread.join()
