"""A benchmark with half of the processors gets half, by a control group or beside competitors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.half import half_of_processors

_BURN = """
import os, sys, time
ends = time.monotonic() + 1.0
children = [os.fork() for _ in os.sched_getaffinity(0)]
if 0 in children:
    while time.monotonic() < ends: pass
    os._exit(0)
for child in children: os.waitpid(child, 0)
used = os.times()
print((used.children_user + used.children_system) / len(children))
"""


def burned() -> float:
    """Processor seconds that each of as many processes as processors gets in a second."""
    return float(subprocess.run([sys.executable, "-c", _BURN], capture_output=True, text=True, check=True).stdout)


def test_a_group_gives_half_and_is_gone_afterwards() -> None:
    before = Path("/proc/self/cgroup").read_text()
    with half_of_processors() as how:
        if "No control group" in how:
            pytest.skip("control groups cannot be written here")
        assert burned() < 0.62
        assert f"held everything together to {len(os.sched_getaffinity(0)) / 2:g} of" in how
    assert Path("/proc/self/cgroup").read_text() == before
    assert not [*Path("/sys/fs/cgroup").glob(f"**/cometmq-bench-{os.getpid()}")]


def test_without_groups_competitors_take_half(tmp_path: Path) -> None:
    with half_of_processors(tmp_path) as how:
        assert "a competitor ran on each of" in how
        assert burned() < 0.75
