"""The faults of the nemesis: each begins, lasts for a while, and ends."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tests.failover.nemesis.members import ENGINE, LEASE_S, NAMES, NAMESRVS, RunningSet
from tests.failover.nemesis.relays import CLIENT
from tests.helpers.waiting import block_for

from cometmq.testing.processes import ProcessFailedError

Undo = Callable[[], None]
Begin = Callable[[RunningSet, random.Random], tuple[str, Undo]]
"""Begins a fault, and returns its text and what ends it."""

SETTLE_S: Final = 0.5
"""Time after which no request of a killed process is on its way to the engine."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault.

    :param longest_s: it lasts at most so long.
    """

    name: str
    begin: Begin
    longest_s: float = 2 * LEASE_S


def one_of(members: RunningSet, rng: random.Random) -> str:
    """Return a member: in half of all cases the master."""
    master = members.master()
    return master if master is not None and rng.random() < 0.5 else rng.choice(NAMES)


def end_all(members: RunningSet, rng: random.Random) -> None:
    """End all faults that are still there."""
    members.relays.heal(resets=rng.random() < 0.5)
    for engine in members.engine.members:
        engine.start()
        engine.signal(signal.SIGCONT)
    for _, server in members.namesrvs:
        if server.pid is None:
            server.kill()
            server.start()
    for name, member in members.members.items():
        limit_files(members, name, resource.RLIM_INFINITY)
        member.go_on()
        members.start(name)


def limit_files(members: RunningSet, name: str, size: int) -> None:
    """Let a member's writes beyond a size of a file fail, as they do on a full disk."""
    if (pid := members.members[name].server.pid) is not None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# --- processes ------------------------------------------------------------------------------------
def _kill(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    members.kill(name)
    return f"{name} is killed", lambda: members.start(name)


def _kill_all(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    order = rng.sample(NAMES, len(NAMES))
    for name in order:
        members.kill(name)

    def start() -> None:
        for name in rng.sample(NAMES, len(NAMES)):
            members.start(name)
            block_for(rng.uniform(0, 1))

    return f"{', '.join(order)} are killed", start


def _kill_and_start(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    members.kill(name)
    block_for(rng.uniform(0, 0.3))
    members.start(name)
    return f"{name} is killed and starts at once", lambda: None


def _stop(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    try:
        members.stop(name)
    except ProcessFailedError as error:
        return f"{name} does not stop cleanly: {error}", lambda: members.start(name)
    return f"{name} is stopped", lambda: members.start(name)


def _pause(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    members.members[name].pause()
    return f"{name} is paused", members.members[name].go_on


def _wipe(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    """Lose a disk, unless it may be the only one that has everything."""
    name = one_of(members, rng)
    members.kill(name)
    block_for(SETTLE_S)
    others = [member for member in members.in_sync() if member.name != name]
    if others:
        members.wipe(name)
    return f"{name} {'loses its disk' if others else 'is killed'}", lambda: members.start(name)


def _fill_disk(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    limit_files(members, name, 0)
    return f"the disk of {name} is full", lambda: limit_files(members, name, resource.RLIM_INFINITY)


# --- network --------------------------------------------------------------------------------------
def _others(name: str) -> list[str]:
    return [*(other for other in NAMES if other != name), ENGINE, *(f"namesrv-{n}" for n in range(NAMESRVS))]


def _heal(members: RunningSet, rng: random.Random) -> Undo:
    return lambda: members.relays.heal(resets=rng.random() < 0.5)


def _isolate(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    """Cut a member off from all servers; in half of all cases clients still reach it."""
    name = one_of(members, rng)
    others = [*_others(name), *([CLIENT] if rng.random() < 0.5 else [])]
    members.relays.cut(*((name, other) for other in others), *((other, name) for other in others))
    return f"{name} is cut off{'' if CLIENT in others else ', but not from clients'}", _heal(members, rng)


def _cut_engine(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    way = rng.choice([[(name, ENGINE)], [(ENGINE, name)], [(name, ENGINE), (ENGINE, name)]])
    members.relays.cut(*way)
    return f"cut: {way}", _heal(members, rng)


def _cut_pair(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    other = rng.choice([one for one in NAMES if one != name])
    way = rng.choice([[(name, other)], [(other, name)], [(name, other), (other, name)]])
    members.relays.cut(*way)
    return f"cut: {way}", _heal(members, rng)


def _cut_from_members(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    """Cut a member off from the others, but not from the engine and clients."""
    name = one_of(members, rng)
    way = [(name, other) for other in NAMES if other != name]
    way += [(other, name) for other, name in map(reversed, way)] if rng.random() < 0.5 else []
    members.relays.cut(*way)
    return f"cut: {way}", _heal(members, rng)


def _delay(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    seconds = rng.choice((0.02, 0.2, 1.0))
    members.relays.delay(seconds, *((name, other) for other in _others(name)))
    return f"{name} sends {seconds:g} s late", _heal(members, rng)


def _reset(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    name = one_of(members, rng)
    members.relays.reset(*((name, other) for other in [*_others(name), CLIENT]))
    return f"all connections of {name} are reset", lambda: None


# --- engine and nameservers -------------------------------------------------------------------------
def _kill_engine_member(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    engine = rng.choice(members.engine.members)
    engine.kill()
    return f"one member of {members.engine.name} is killed", engine.start


def _pause_engine_member(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    engine = rng.choice(members.engine.members)
    engine.signal(signal.SIGSTOP)
    return f"one member of {members.engine.name} is paused", lambda: engine.signal(signal.SIGCONT)


def _kill_engine(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    for engine in members.engine.members:
        engine.kill()

    def start() -> None:
        for engine in members.engine.members:
            engine.start()

    return f"{members.engine.name} is killed", start


def _kill_namesrv(members: RunningSet, rng: random.Random) -> tuple[str, Undo]:
    _, server = rng.choice(members.namesrvs)
    server.kill()
    return f"{server.name} is killed", server.start


FAULTS: Final = (
    Fault("kill", _kill),
    Fault("kill and start", _kill_and_start, 3.0),
    Fault("kill all", _kill_all, 2.0),
    Fault("stop", _stop),
    Fault("pause", _pause),
    Fault("wipe", _wipe),
    Fault("full disk", _fill_disk),
    Fault("isolate", _isolate),
    Fault("cut engine", _cut_engine),
    Fault("cut pair", _cut_pair),
    Fault("cut from members", _cut_from_members),
    Fault("delay", _delay),
    Fault("reset", _reset, 1.0),
    Fault("kill engine member", _kill_engine_member),
    Fault("pause engine member", _pause_engine_member),
    Fault("kill engine", _kill_engine),
    Fault("kill namesrv", _kill_namesrv),
)
