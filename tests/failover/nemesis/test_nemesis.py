"""Real processes under faults: the cases that the simulator cannot prove, and a short random story.

``python -m tests.failover.nemesis --seconds 600 --seed N`` tells long ones.
"""

from __future__ import annotations

import os
import random
import resource
import time
from pathlib import Path

import pytest
from tests.failover.checker.groups import BEHIND_S, check_groups
from tests.failover.checker.queues import totals
from tests.failover.nemesis.faults import limit_files
from tests.failover.nemesis.load import Load, wait_for_sends
from tests.failover.nemesis.members import ENGINE, LEASE_S, NAMES, RunningSet
from tests.failover.nemesis.story import Story
from tests.helpers.pace import is_in_time, slowness
from tests.helpers.waiting import block_for, wait_for

pytestmark = pytest.mark.crash

PATIENCE_S = 60.0
STORY_S = 10.0


def judged(story: Story, directory: Path) -> None:
    """Check the history, and that it tested something."""
    story.judge()
    assert story.findings == [], story.report(directory)
    counted = totals(story.history)
    assert counted.read >= counted.acknowledged


def master_of(members: RunningSet) -> str:
    master = members.master()
    assert master is not None
    return master


def others(name: str) -> list[str]:
    return [other for other in NAMES if other != name]


def test_kills_cuts_and_full_disks_lose_nothing(story: Story, members: RunningSet, tmp_path: Path) -> None:
    """One history: the master is killed, paused beyond its lease in the middle of writes, and its disk fills."""
    with story.loaded() as load:
        _master_is_killed(story, members, load)
        _master_is_paused_and_resumes(story, members, load)
        _disk_of_the_master_fills(story, members, load)
        _all_are_killed(story, members, load)
    judged(story, tmp_path)


def _master_is_killed(story: Story, members: RunningSet, load: Load) -> None:
    """A master that is killed is replaced within two seconds; it comes back and cuts what only it has."""
    old = master_of(members)
    block_for(2 * BEHIND_S)  # of offsets that are committed and copied
    story.note(f"{old} is killed")
    members.kill(old)
    took = wait_for_sends(load, PATIENCE_S)
    assert is_in_time(took, 2.0 + 1.0), f"{took:.1f} s until a client's message was acknowledged"
    assert members.master() != old
    story.heal(load)
    behind_s = (BEHIND_S + 0.5) * slowness()
    assert check_groups(story.history, behind_s) == [], "offsets are at most a second back"


def _master_is_paused_and_resumes(story: Story, members: RunningSet, load: Load) -> None:
    old = master_of(members)
    story.note(f"{old} is paused")
    members.members[old].pause()
    took = wait_for_sends(load, PATIENCE_S)
    assert is_in_time(took, LEASE_S + 2.0 + 1.0), f"{took:.1f} s until a client's message was acknowledged"
    block_for(1)
    story.heal(load)
    assert members.master() != old


def _disk_of_the_master_fills(story: Story, members: RunningSet, load: Load) -> None:
    """It hands over, and is in sync again when there is space."""
    old = master_of(members)
    story.note(f"the disk of {old} is full")
    limit_files(members, old, 0)
    wait_for(lambda: members.master() not in (None, old), "another member is the master", PATIENCE_S)
    wait_for_sends(load, PATIENCE_S)
    assert members.members[old].server.pid is not None
    limit_files(members, old, resource.RLIM_INFINITY)
    story.heal(load)


def _all_are_killed(story: Story, members: RunningSet, load: Load) -> None:
    story.note("all are killed")
    for name in NAMES:
        members.kill(name)
    story.heal(load)


def test_cuts_of_single_links_follow_the_table_of_failures(story: Story, members: RunningSet, tmp_path: Path) -> None:
    """One history: the master loses the engine, its followers, and everything but its clients; then the engine dies."""
    with story.loaded() as load:
        _master_is_cut_from_the_engine(story, members, load)
        _reports_are_lost(story, members, load)
        _only_clients_reach_the_master(story, members, load)
        _engine_dies_and_then_the_master(story, members, load)
    judged(story, tmp_path)


def _master_is_cut_from_the_engine(story: Story, members: RunningSet, load: Load) -> None:
    """It goes on, and keeps its set."""
    master, before = master_of(members), members.document()
    story.note(f"{master} is cut from the engine")
    members.relays.cut((master, ENGINE), (ENGINE, master))
    block_for(LEASE_S + 1)
    wait_for_sends(load, PATIENCE_S)
    assert members.document() == before
    story.heal(load)


def _reports_are_lost(story: Story, members: RunningSet, load: Load) -> None:
    """What a follower sends is lost in one direction: it is struck, and acknowledgements go on."""
    master = master_of(members)
    follower = others(master)[0]
    story.note(f"{follower} is not heard by {master}")
    members.relays.cut((follower, master))
    took = wait_for_sends(load, PATIENCE_S)
    assert is_in_time(took, LEASE_S / 2 + 2.0), f"{took:.1f} s until a client's message was acknowledged"
    assert follower not in {one.name for one in members.in_sync()}
    assert members.master() == master
    story.heal(load)


def _only_clients_reach_the_master(story: Story, members: RunningSet, load: Load) -> None:
    """It acknowledges nothing more, and cuts what it has appended since."""
    old = master_of(members)
    story.note(f"only clients reach {old}")
    parties = [*others(old), ENGINE, *(server.name for _, server in members.namesrvs)]
    members.relays.cut(*((old, party) for party in parties), *((party, old) for party in parties))
    wait_for_sends(load, PATIENCE_S)
    assert members.master() != old
    story.heal(load)


def _engine_dies_and_then_the_master(story: Story, members: RunningSet, load: Load) -> None:
    """Nobody takes over until the engine is back; without the engine the master had gone on."""
    master = master_of(members)
    story.note("etcd is killed")
    members.engine.members[0].kill()
    block_for(1)
    wait_for_sends(load, PATIENCE_S)
    story.note(f"{master} is killed")
    members.kill(master)
    begun = time.monotonic()
    block_for(LEASE_S + 1)
    assert load.last_ok <= begun, "nobody acknowledges a message that is sent now"
    story.heal(load)


def any_seed() -> int:
    return int(os.environ.get("COMETMQ_NEMESIS_SEED", random.Random(time.time_ns()).randrange(1, 10**6)))


def test_a_random_story_breaks_no_promise(story: Story, tmp_path: Path) -> None:
    story.seed = any_seed()
    story.run(STORY_S)
    assert story.findings == [], story.report(tmp_path)


def test_a_random_story_in_kubernetes_breaks_no_promise(in_kubernetes: Story, tmp_path: Path) -> None:
    in_kubernetes.seed = any_seed()
    in_kubernetes.run(STORY_S)
    assert in_kubernetes.findings == [], in_kubernetes.report(tmp_path)
