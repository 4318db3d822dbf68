"""``python -m tests.failover.simulator --seconds 600``: histories until one violates a rule, which is printed."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from cometmq.broker.failover.machine import MemberMachine
from tests.failover.simulator.mistakes import MISTAKES
from tests.failover.simulator.world import World


def main() -> int:
    """Run histories; return 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--only", action="store_true", help="run only that seed, and print its history")
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="leave out one rule, to see that it is found")
    options = parser.parse_args()
    machine = MISTAKES[options.mistake] if options.mistake else MemberMachine
    begun = time.monotonic()
    seed, total = options.seed, Counter[str]()
    while time.monotonic() < begun + options.seconds:
        result = World(seed, machine).run()
        total.update(
            histories=1, steps=result.steps, elections=result.elections, confirmed=result.confirmed,
            changes=result.changes, power_losses=result.power_losses, forced=result.was_forced,
        )
        if result.violation is not None or options.only:
            trace: list[str] = []
            World(seed, machine, trace=trace).run()
            print("\n".join(trace))
            print(f"seed {seed}, after {total['histories']} histories: {result.violation}")
            return int(result.violation is not None)
        seed += 1
    minutes = (time.monotonic() - begun) / 60
    print(f"nothing found in {minutes:.1f} minutes, {total['histories'] / minutes:.0f} histories a minute: {dict(total)}")
    return 0


sys.exit(main())
