"""One broker with its nameservers: it is filled, bears small sends, is stopped and killed, and tells what it holds."""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import Beside, CpuTimes, anonymous_mb, cpu_seconds
from benchmarks.rounds import Figures
from benchmarks.scale import held
from benchmarks.scale.wire import RefusedError, Wire, make_topic, send
from benchmarks.servers import JAVA
from tests.interop import probe, systems
from tests.interop.systems import Server, System

ROOT: Final = Path(__file__).parents[2]
PROBE: Final = "Probe"
PROBE_QUEUES: Final = 4
PAUSE_S: Final = (0.005, 0.010)
"""Between two small sends: they come at random moments, so that no work at intervals is missed."""
CHANGE_S: Final = 0.1
READY_S: Final = 300.0
LOOK_S: Final = 0.005
START_AND_STOP: Final = "Task-1: run_server"
"""The task that starts and stops a server. No client is connected meanwhile."""


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


@dataclass(frozen=True)
class Options:
    """The way in which a broker runs."""

    nameservers: int = 1
    keys: Mapping[str, str] = field(default_factory=dict)
    """Of its configuration."""
    holds: bool = False
    """Its loop is measured, which costs it a little (:mod:`benchmarks.scale.held`)."""


class Bench:
    """One system with its nameservers, on a store of its own.

    :param options: how it runs.
    """

    def __init__(self, system: System, directory: Path, times: Times, options: Options | None = None) -> None:
        self.times = times
        self.options = options or Options()
        self.holds: dict[str, float] = {}
        """The longest hold of the loop by each callback, in milliseconds, if they are measured."""
        self.beside: list[Beside] = []
        """How busy the machine was with others."""
        self.changes: Iterator[bytes] = iter(())
        """Requests that are sent beside the small sends, ten a second."""
        self._system = system
        self.directory = directory
        self.names = [
            systems.start_namesrv(system, directory / f"namesrv-{number}") for number in range(self.options.nameservers)
        ]
        self._broker: Server | None = None

    def start(self) -> float:
        """Start the broker; seconds from its start until a send succeeds."""
        port = None if self._broker is None else self._broker.port
        with ThreadPoolExecutor(1) as starter:
            begun = time.monotonic()
            starting = starter.submit(self._launch, port)
            while port is not None and not self._takes_a_send(port):
                if starting.done() and (problem := starting.exception()):
                    raise problem
                if time.monotonic() - begun > READY_S:
                    raise TimeoutError(f"no send succeeds within {READY_S:g} s")
                time.sleep(LOOK_S)
            seconds = time.monotonic() - begun
            self._broker = starting.result()
        self._read_holds()  # the start itself holds up nobody
        if port is None:
            with self.wire() as wire:
                wire.ask(make_topic(PROBE))
                _warm(wire, self.times.warm)
        return seconds

    def _launch(self, port: int | None) -> Server:
        names = ";".join(one.address for one in self.names)
        with self._measured_loop():
            return systems.start_broker(self._system, self.directory / "broker", names, self.options.keys, port, JAVA)

    @contextmanager
    def _measured_loop(self) -> Iterator[None]:
        """Have the broker that is started measure its loop."""
        before = vars(Server)["popen"]  # as it is: a function would be bound
        if self._has_holds:
            os.environ[held.FILE] = str(self.directory / "holds.json")

            def start(command: list[str], env: dict[str, str], **more: Any) -> subprocess.Popen[bytes]:
                path = os.pathsep.join(filter(None, (str(ROOT), env.get("PYTHONPATH"))))
                begin = [command[0], "-m", "benchmarks.scale.held"]
                return subprocess.Popen([*begin, *command[3:]], env={**env, "PYTHONPATH": path}, **more)

            Server.popen = staticmethod(start)
        try:
            yield
        finally:
            Server.popen = before

    @staticmethod
    def _takes_a_send(port: int) -> bool:
        with suppress(OSError, RefusedError), Wire(port) as wire:
            wire.ask(send(PROBE))
            return True
        return False

    def ready(self, topic: str | None = None) -> Figures:
        """Stop the broker, and kill it; each time seconds until a send succeeds again, and processor time until then.

        :param topic: a topic for whose routes at all nameservers is waited after the stop.
        """
        found = self.loop_holds()
        self._running.stop()
        begun = time.monotonic()
        found["ready after a stop, s"] = self.start()
        found["start after a stop, processor time, s"] = sum(cpu_seconds(self._running.pid))
        if topic is not None:
            self._wait_for_routes(topic)
            found["routes at all nameservers after a stop, s"] = time.monotonic() - begun
        time.sleep(self.times.after)  # an Apache broker that has just started has not written what a kill finds
        found |= {f"{name}, after a start": value for name, value in self.loop_holds().items()}
        self._running.kill()
        found["ready after SIGKILL, s"] = self.start()
        found["start after SIGKILL, processor time, s"] = sum(cpu_seconds(self._running.pid))
        return found

    def _wait_for_routes(self, topic: str) -> None:
        end = time.monotonic() + READY_S
        while not all(probe.topic_routed(one.address, topic) for one in self.names):
            if time.monotonic() > end:
                raise TimeoutError(f"no route of {topic} within {READY_S:g} s")
            time.sleep(LOOK_S)

    def loop_holds(self) -> Figures:
        """The longest hold of the loop since the start or the last call, and nothing unless it is measured."""
        if not self._has_holds:
            return {}
        found = self._read_holds()
        for name, milliseconds in found.items():
            self.holds[name] = max(self.holds.get(name, 0.0), milliseconds)
        return {"longest hold of the loop, ms": max(found.values(), default=0.0)}

    @property
    def _has_holds(self) -> bool:
        return self.options.holds and self._system is System.COMETMQ

    def _read_holds(self) -> dict[str, float]:
        if not self._has_holds:
            return {}
        found = held.read(self._running.pid, self.directory / "holds.json")
        return {name: seconds * 1000 for name, seconds in found.items() if not name.startswith(START_AND_STOP)}

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

    def processor_time(self) -> float:
        """Seconds of processor time that the broker has used."""
        return sum(cpu_seconds(self._running.pid))

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
        for one in self.names:
            one.close()


def _warm(wire: Wire, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        wire.pour(send(PROBE, number % PROBE_QUEUES) for number in range(100))


def worst(waits: list[tuple[float, float]]) -> float:
    """The longest wait, in ms."""
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
