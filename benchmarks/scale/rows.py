"""The rows: each fills one broker, sends a little while it is at rest, and most start the broker again."""

from __future__ import annotations

import itertools
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds
from benchmarks.rounds import Figures
from benchmarks.scale.wire import RefusedError, Wire, commit, make_topic, send
from benchmarks.servers import JAVA
from tests.interop import systems
from tests.interop.systems import Server, System

PROBE: Final = "Probe"
PROBE_QUEUES: Final = 4
PAUSE_S: Final = (0.005, 0.010)
"""Between two small sends: they come at random moments, so that no work at intervals is missed."""
CHANGE_S: Final = 0.1
ONE_MORE: Final = 20
OFFSET_TOPICS: Final = 1_000
OFFSET_QUEUES: Final = 10
"""Of each topic: a million offsets are 100,000 pairs of topic and group; CometMQ takes 200,000, its own included."""
TIMER_S: Final = 47 * 3_600
READY_S: Final = 300.0
LOOK_S: Final = 0.005


@dataclass(frozen=True)
class Times:
    """Seconds of the parts of one measurement."""

    warm: float = 5.0
    """Sends as fast as one connection goes, before anything is measured."""
    after: float = 5.0
    """Small sends at once after the fill …"""
    steady: float = 10.0
    """… from then on …"""
    idle: float = 10.0
    """… and no sends."""


class Bench:
    """One system with its nameserver, on a fresh store."""

    def __init__(self, system: System, directory: Path, times: Times) -> None:
        self.times = times
        self.beside: list[Beside] = []
        """How busy the machine was with others."""
        self.changes: Iterator[bytes] = iter(())
        """Requests that are sent beside the small sends, ten a second."""
        self._system = system
        self._directory = directory
        self._names = systems.start_namesrv(system, directory / "namesrv")
        self._broker: Server | None = None

    def start(self) -> float:
        """Start the broker; seconds from its start until a send succeeds."""
        port = None if self._broker is None else self._broker.port
        with ThreadPoolExecutor(1) as starter:
            begun = time.monotonic()
            starting = starter.submit(
                systems.start_broker, self._system, self._directory / "broker", self._names.address, {}, port, JAVA
            )
            while port is not None and not self._takes_a_send(port):
                if starting.done() and (problem := starting.exception()):
                    raise problem
                if time.monotonic() - begun > READY_S:
                    raise TimeoutError(f"no send succeeds within {READY_S:g} s")
                time.sleep(LOOK_S)
            seconds = time.monotonic() - begun
            self._broker = starting.result()
        if port is None:
            with self.wire() as wire:
                wire.ask(make_topic(PROBE))
                _warm(wire, self.times.warm)
        return seconds

    @staticmethod
    def _takes_a_send(port: int) -> bool:
        with suppress(OSError, RefusedError), Wire(port) as wire:
            wire.ask(send(PROBE))
            return True
        return False

    def ready(self) -> Figures:
        """Stop the broker, and kill it; each time seconds until a send succeeds again."""
        self._running.stop()
        stopped = self.start()
        time.sleep(self.times.after)  # an Apache broker that has just started has not written what a kill finds
        self._running.kill()
        return {"ready after a stop, s": stopped, "ready after SIGKILL, s": self.start()}

    @property
    def _running(self) -> Server:
        assert self._broker is not None
        return self._broker

    @property
    def port(self) -> int:
        """Of the broker."""
        return self._running.port

    def wire(self) -> Wire:
        """A connection to the broker."""
        return Wire(self.port)

    def waits(self, while_: Callable[[], bool]) -> list[tuple[float, float]]:
        """Small sends, one every 5 to 10 ms: for each the second in which it began, and how long it took, in ms."""
        taken: list[tuple[float, float]] = []
        with self.wire() as wire, self.wire() as other:
            begun = changed = time.monotonic()
            for number in itertools.count():
                at = time.monotonic()
                wire.ask(send(PROBE, number % PROBE_QUEUES))
                now = time.monotonic()
                taken.append((at - begun, (now - at) * 1000))
                if now - changed >= CHANGE_S and (change := next(self.changes, None)) is not None:
                    other.ask(change)
                    changed = now
                if not while_():
                    return taken
                time.sleep(random.uniform(*PAUSE_S))
        raise AssertionError("unreachable")

    def waits_for(self, seconds: float) -> list[tuple[float, float]]:
        """Small sends for some seconds."""
        end = time.monotonic() + seconds
        return self.waits(lambda: time.monotonic() < end)

    def at_rest(self) -> Figures:
        """Waits of small sends and the share of a processor with them; then without them, and what the broker holds."""
        with self._share() as busy:
            waits = self.waits_for(self.times.steady)
        with self._share() as idle:
            time.sleep(self.times.idle)
        each_second = worst_each_second(waits)
        return {
            "longest wait per second, median, ms": statistics.median(each_second),
            "longest wait per second, maximum, ms": max(each_second),
            "processor use with small sends, %": busy[0],
            "processor use without sends, %": idle[0],
            **self.held(),
        }

    def held(self) -> Figures:
        """Anonymous memory and descriptors of the broker."""
        pid = self._running.pid
        descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        return {"anonymous memory, MB": anonymous_mb(pid), "descriptors": float(descriptors)}

    @contextmanager
    def _share(self) -> Iterator[list[float]]:
        """The list gets the broker's share of one processor, in percent."""
        share: list[float] = []
        clocks, own = CpuTimes.now(), time.process_time()
        cpu, begun = sum(cpu_seconds(self._running.pid)), time.monotonic()
        yield share
        cpu = sum(cpu_seconds(self._running.pid)) - cpu
        share.append(cpu / (time.monotonic() - begun) * 100)
        self.beside.append(Beside.between(clocks, CpuTimes.now(), cpu + time.process_time() - own))

    def close(self) -> None:
        """Kill both; the store is the caller's."""
        if self._broker is not None:
            self._broker.kill()
        self._names.close()


def _warm(wire: Wire, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        wire.pour(send(PROBE, number % PROBE_QUEUES) for number in range(100))


def _worst(waits: list[tuple[float, float]]) -> float:
    return max(ms for _, ms in waits)


def worst_each_second(waits: list[tuple[float, float]]) -> list[float]:
    """The longest wait, in ms, of each second; a send that waits for seconds counts in each of them.

    :param waits: second of the begin and milliseconds of each send.
    """
    worst: dict[int, float] = {}
    for at, ms in waits:
        for second in range(int(at), int(at + ms / 1000) + 1):
            worst[second] = max(worst.get(second, 0.0), ms)
    return list(worst.values())


def _fill_topics(wire: Wire, count: int, queues: int = 5) -> None:
    wire.pour(make_topic(f"Topic-{number}", queues) for number in range(count))


def _first_messages(wire: Wire, count: int) -> None:
    wire.pour(send(f"Topic-{number}") for number in range(count))


def topics(bench: Bench, count: int) -> Figures:
    """So many topics of five queues, one message in one queue of each."""
    with bench.wire() as wire:
        _fill_topics(wire, count)
        took = []
        for number in range(ONE_MORE):
            begun = time.monotonic()
            wire.ask(make_topic(f"More-{number}"))
            took.append((time.monotonic() - begun) * 1000)
        _first_messages(wire, count)
    after = _worst(bench.waits_for(bench.times.after))
    more = {"creating one more topic, ms": statistics.median(took), "longest wait after the first messages, ms": after}
    return {**more, **bench.at_rest(), **bench.ready()}


def offsets(bench: Bench, count: int) -> Figures:
    """So many offsets, of groups that each read every queue of 1,000 topics; ten a second go on beside small sends."""
    names = min(max(count // OFFSET_QUEUES, 1), OFFSET_TOPICS)
    places = [
        (
            f"Group-{number // (names * OFFSET_QUEUES)}",
            f"Topic-{number // OFFSET_QUEUES % names}",
            number % OFFSET_QUEUES,
        )
        for number in range(count)
    ]
    with bench.wire() as wire:
        _fill_topics(wire, names, OFFSET_QUEUES)
        _first_messages(wire, names)
        begun = time.monotonic()
        wire.pour(commit(*place, 0) for place in places)
        per_s = count / (time.monotonic() - begun)
    after = _worst(bench.waits_for(bench.times.after))
    bench.changes = (commit(*place, 1) for place in itertools.cycle(places))
    return {"commits/s": per_s, "longest wait after the commits, ms": after, **bench.at_rest(), **bench.ready()}


def timers(bench: Bench, count: int) -> Figures:
    """So many messages that wait for two days."""
    due_ms = int((time.time() + TIMER_S) * 1000)
    with bench.wire() as wire:
        wire.ask(make_topic("Timers"))
        begun = time.monotonic()
        delays = (f"TIMER_DELIVER_MS\x01{due_ms + number}\x02" for number in range(count))
        wire.pour(send("Timers", 0, delay) for delay in delays)
        per_s = count / (time.monotonic() - begun)
    after = _worst(bench.waits_for(bench.times.after))
    return {"sends/s": per_s, "longest wait after the sends, ms": after, **bench.at_rest(), **bench.ready()}


def clients(bench: Bench, count: int) -> Figures:
    """So many connections of producers and consumers, that come at once, send heartbeats, and leave at once."""
    with bench.wire() as wire:
        wire.ask(make_topic("Crowd"))
    before = bench.held()["anonymous memory, MB"]
    command = [sys.executable, "-m", "benchmarks.scale.crowd", str(bench.port), str(count), "Crowd"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as crowd:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        coming = threading.Thread(target=crowd.stdout.readline, daemon=True)
        coming.start()
        came = _worst(bench.waits(coming.is_alive))
        if crowd.poll() is not None:
            raise RuntimeError("the clients could not come")
        rest = bench.at_rest()
        crowd.stdin.close()
        left = _worst(bench.waits_for(bench.times.after))
    return {
        "longest wait while clients connect, ms": came,
        **rest,
        "longest wait while clients disconnect, ms": left,
        "anonymous memory before they connect, MB": before,
        "anonymous memory after they disconnect, MB": bench.held()["anonymous memory, MB"],
    }


ROWS: Final[dict[str, Callable[[Bench, int], Figures]]] = {
    "topics": topics,
    "offsets": offsets,
    "timers": timers,
    "clients": clients,
}
