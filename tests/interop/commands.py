"""Running commands of the client programs: their JSON lines become events that a test can wait for."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from tests.helpers.pace import Patience

Event = dict[str, Any]


class CommandFailedError(AssertionError):
    """A client program reported an error; the text is its own."""

    def __init__(self, event: Event, log: str) -> None:
        super().__init__(
            f"{event.get('type')}: {event.get('message')} {event.get('cause', '')} {event.get('trace', '')}\n{log}"
        )
        self.code = event.get("code")
        self.problem = str(event.get("message"))


class Running:
    """A command on its way."""

    def __init__(self, stop: Callable[[], None], log: Callable[[], str]) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition(threading.RLock())
        self._stop = stop
        self._log = log

    def add(self, event: Event) -> None:
        """Take an event from the program (called by its reader)."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def named(self, name: str) -> list[Event]:
        """The events of one kind so far."""
        with self._changed:
            return [event for event in self.events if event["event"] == name]

    def wait_until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until the events fulfil a condition; fails when the command ended in an error or time is up."""
        patience = Patience(timeout_s)
        with self._changed:
            while not condition():
                self._raise_problem()
                if not self._changed.wait(patience.left_s) and patience.is_over:
                    seen = [event for event in self.events if event["event"] != "message"][-5:]
                    raise AssertionError(f"not within {timeout_s:g} s: {what}; events {seen}\n{self._log()}")

    def wait(self, timeout_s: float) -> list[Event]:
        """Wait for the end; all events."""
        self.wait_until(
            lambda: bool(self.events) and self.events[-1]["event"] == "done", timeout_s, "the command ended"
        )
        return self.events

    def ask_to_stop(self) -> None:
        """Ask it to finish."""
        self._stop()

    def stop(self, timeout_s: float = 90) -> list[Event]:
        """Ask it to finish, and wait for that."""
        self.ask_to_stop()
        return self.wait(timeout_s)

    def _raise_problem(self) -> None:
        for event in self.events:
            if event["event"] == "error":
                raise CommandFailedError(event, self._log())


class Runner(Protocol):
    """Something that runs commands of one client program."""

    def start(self, arguments: list[str]) -> Running:
        """Start a command."""

    def close(self) -> None:
        """End everything that still runs."""


class ProcessRunner:
    """One process a command; a line on its standard input asks it to finish."""

    def __init__(self, command: list[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._directory = directory
        self._environment = {**os.environ, "LC_ALL": "C.UTF-8", **environment}
        self._numbers = itertools.count(1)
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, arguments: list[str]) -> Running:
        """Start a process."""
        log = self._directory / f"{next(self._numbers):03}.err"
        with log.open("w") as errors:
            process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
        self._processes.append(process)

        def stop() -> None:
            assert process.stdin is not None
            with suppress(BrokenPipeError, ValueError):  # it has ended
                process.stdin.write("stop\n")
                process.stdin.flush()

        running = Running(stop, lambda: log.read_text(errors="replace")[-4000:])

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                running.add(_event(line))
            code = process.wait()
            _close_pipes(process)  # of hundreds of commands, beside which `select` soon knows no descriptor any more
            if not running.events or running.events[-1]["event"] not in ("done", "error"):
                running.add({"event": "error", "type": "exit", "message": f"ended with code {code}"})

        threading.Thread(target=read, daemon=True).start()
        return running

    def close(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            _close_pipes(process)


class JavaRunner:
    """One JVM for all commands: each runs in a thread of it, and its lines carry the command's number."""

    def __init__(self, command: list[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._log = directory / "java.err"
        self._numbers = itertools.count(1)
        self._commands: dict[int, Running] = {}
        self._writing = threading.Lock()
        with self._log.open("w") as errors:
            self._process = subprocess.Popen(
                [*command, "serve"],
                cwd=directory,
                env={**os.environ, "LC_ALL": "C.UTF-8", **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(self, arguments: list[str]) -> Running:
        """Start a command in a thread of the JVM."""
        number = next(self._numbers)
        running = Running(
            lambda: self._send({"id": number, "stop": True}), lambda: self._log.read_text(errors="replace")[-4000:]
        )
        self._commands[number] = running
        self._send({"id": number, "args": arguments})
        return running

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()

    def _send(self, line: Event) -> None:
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = _event(line)
            if "id" in event:
                self._commands[event["id"]].add(event)
        for running in list(self._commands.values()):
            if not running.named("done"):
                running.add({"event": "error", "type": "exit", "message": "the JVM ended"})


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):
            pipe.close()


def _event(line: str) -> Event:
    """One line; a library that prints to standard output itself gives a `noise` event."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return {"event": "noise", "text": line.rstrip()}
    return event if isinstance(event, dict) and "event" in event else {"event": "noise", "text": line.rstrip()}
