"""The faults of one history: each history has its own mixture, so that rare combinations come together (swarms)."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Rates:
    """Mean number of faults of each kind in ten seconds, and probabilities (``…_share``) of network and engine."""

    kill: float = 0
    """SIGKILL; the kernel keeps what was written."""
    kill_master: float = 0
    power: float = 0
    """A machine loses power, and all bytes that were not flushed."""
    blackout: float = 0
    """All machines lose power together."""
    wipe: float = 0
    """A machine comes back with an empty disk."""
    pause: float = 0
    """SIGSTOP, or a paused virtual machine."""
    cut: float = 0
    """One direction between two members."""
    cut_engine: float = 0
    """One direction between a member and the engine."""
    engine_down: float = 0
    """The engine answers nobody."""
    jump: float = 0
    """A member's clock jumps ahead."""
    disk: float = 0
    """A disk is full or failing for a while."""
    slow_disk: float = 0
    handover: float = 0
    rumour: float = 0
    """A follower believes that its master's process is dead."""
    lost_share: float = 0
    """Probability that an answer of the engine is lost."""
    late_share: float = 0
    """Probability that a request to the engine arrives seconds after the member has given up."""
    echo_share: float = 0
    """Probability that a report arrives a second time, seconds later."""


def choose_rates(rng: random.Random) -> Rates:
    """Return the faults of one history: some of the kinds, each from rare to frequent."""
    share = rng.choice((0.2, 0.4, 0.6))
    chosen = {}
    for field in fields(Rates):
        if rng.random() < share:
            if field.name.endswith("_share"):
                chosen[field.name] = rng.choice((0.05, 0.2, 0.5))
            else:
                chosen[field.name] = rng.choice((1.0, 3.0, 6.0)) * (0.2 if field.name in ("blackout", "wipe") else 1)
    return Rates(**chosen)
