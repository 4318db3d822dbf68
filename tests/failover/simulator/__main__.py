"""``python -m tests.failover.simulator --seconds 600``: histories until one violates a rule, which is printed."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter

from tests.failover.simulator.mistakes import MISTAKES, made
from tests.failover.simulator.world import World

_SHORTER = (
    (re.compile(r"Member\(name='(\w+)', generation=(\d+)\)"), r"\1#\2"),
    (re.compile(r"replicas=\(.*?\)\), |set_id='\w*', |at_ms=\d+|, version=''"), ""),
    (re.compile(r"Presence\(member=(\S+), process='\d+', address='\S*', ha_address='\S*', "), r"Presence(\1, "),
    (re.compile(r"frozenset\((.*?)\)"), r"\1"),
)


def printed(line: str) -> str:
    """Return a line of a history in fewer characters."""
    for pattern, text in _SHORTER:
        line = pattern.sub(text, line)
    return line


def main() -> int:
    """Run histories; return 1 after a violation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--only", action="store_true", help="run only this seed, and print its history")
    parser.add_argument("--mistake", choices=sorted(MISTAKES), help="leave out one rule, to see that it is found")
    options = parser.parse_args()
    mistake = MISTAKES.get(options.mistake)
    rates = None if mistake is None else mistake.rates
    begun = time.monotonic()
    seed, total = options.seed, Counter[str]()
    with made(mistake):
        while time.monotonic() < begun + options.seconds:
            result = World(seed, rates=rates).run()
            total.update(histories=1, steps=result.steps, elections=result.elections, confirmed=result.confirmed)
            total.update(changes=result.changes, power_losses=result.power_losses, forced=result.was_forced)
            if result.violation is not None or options.only:
                trace: list[str] = []
                World(seed, rates=rates, trace=trace).run()
                print("\n".join(map(printed, trace)))
                print(f"seed {seed}, after {total['histories']} histories: {result.violation or 'nothing found'}")
                return int(result.violation is not None)
            seed += 1
    minutes = (time.monotonic() - begun) / 60
    pace = total["histories"] / minutes
    print(f"nothing found in {minutes:.1f} minutes, {pace:.0f} histories a minute: {dict(total)}")
    return 0


sys.exit(main())
