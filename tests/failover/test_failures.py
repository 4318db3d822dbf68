"""The table of failures: what happens, and how long it takes, under the movable clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.failover.simulator.faults import Rates
from tests.failover.simulator.node import Node
from tests.failover.simulator.world import NAMES, World

from cometmq.broker.failover import events as e
from cometmq.broker.failover.states import State

LEASE_S = 4.0
SEEDS = range(1, 6)
MANY_SEEDS = range(1, 21)


def healthy(seed: int) -> World:
    """Return a set with three members in sync, which is sent a message each 20 ms."""
    world = World(seed, rates=Rates())
    world.min_in_sync = 1
    world.is_fast = True
    world.begin()

    def load() -> None:
        world.load()
        world.at(world.now + 0.02, load)

    world.at(0, load)
    assert world.run_until(10, lambda: world.now > 4 and in_sync(world) == set(NAMES))
    return world


def in_sync(world: World) -> set[str]:
    document = world.engine.store.document
    return set() if document is None else {member.name for member in document.in_sync}


def epoch(world: World) -> int:
    document = world.engine.store.document
    assert document is not None
    return document.epoch


def outage(world: World, limit_s: float = 30) -> float:
    """Return the time until a message that is sent from now on is confirmed."""
    begun = world.now
    known = world.number
    assert world.run_until(begun + limit_s, lambda: any(number > known for _, number in world.check.truth[-10:]))
    return world.now - begun


def worst(fail: Callable[[World], float]) -> float:
    """Return the longest time over all seeds."""
    return max(fail(healthy(seed)) for seed in MANY_SEEDS)


def cut_off(world: World, node: Node) -> None:
    """Cut a member off from everybody."""
    for name in NAMES:
        world.cuts |= {(name, node.name), (node.name, name)}
    world.engine.cut_to.add(node.name)
    world.engine.cut_from.add(node.name)


def test_a_master_that_is_killed_is_replaced_in_two_seconds() -> None:
    def kill(world: World) -> float:
        world.master.kill()
        return outage(world)

    assert worst(kill) < 2


def test_a_machine_that_is_cut_off_is_replaced_in_the_lease_and_two_seconds() -> None:
    def cut(world: World) -> float:
        cut_off(world, world.master)
        return outage(world)

    assert worst(cut) < LEASE_S + 2


def test_a_machine_that_loses_power_is_replaced_in_the_lease_and_two_seconds() -> None:
    def lose(world: World) -> float:
        world.master.lose_power()
        return outage(world)

    assert worst(lose) < LEASE_S + 2


def test_a_handover_takes_less_than_a_second_and_loses_no_pending_message() -> None:
    def hand_over(world: World) -> float:
        old = world.master
        appended = list(old.disk.log)
        old.give(e.HandOver("", "a rolling upgrade"))
        took = outage(world)
        assert world.master is not old
        assert world.check.truth[: len(appended)] == appended
        return took

    assert worst(hand_over) < 1


def test_a_disk_that_fails_hands_over_at_once_and_stays_out_until_it_is_healthy() -> None:
    def fail(world: World) -> float:
        old = world.master
        old.is_disk_bad = True
        old.give(e.DiskFailed("the disk is full"))
        took = outage(world)
        assert world.master is not old
        world.run_until(world.now + 5)
        assert old.name not in in_sync(world)
        world._heal_disk(old)
        assert world.run_until(world.now + 10, lambda: in_sync(world) == set(NAMES))
        return took

    assert worst(fail) < 1


def test_a_follower_that_dies_or_whose_disk_fails_holds_acknowledgements_up_for_two_seconds_at_most() -> None:
    def kill(world: World) -> float:
        follower = next(node for node in world.nodes.values() if node is not world.master)
        follower.is_disk_bad = True
        took = outage(world)
        assert follower.name not in in_sync(world)
        return took

    assert worst(kill) < LEASE_S / 2 + 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_master_goes_on_while_the_engine_is_away(seed: int) -> None:
    world = healthy(seed)
    master, known = world.master, len(world.check.truth)
    world.engine.is_down = True
    world.run_until(world.now + 60)
    assert world.master is master
    assert len(world.check.truth) > known + 1000
    world.engine.come_up()
    world.run_until(world.now + 10)
    assert epoch(world) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_master_that_is_cut_from_the_engine_only_goes_on(seed: int) -> None:
    world = healthy(seed)
    world.engine.cut_to.add(world.master.name)
    known = len(world.check.truth)
    world.run_until(world.now + 30)
    assert epoch(world) == 1
    assert len(world.check.truth) > known + 500


@pytest.mark.parametrize("seed", SEEDS)
def test_a_master_that_is_cut_from_its_followers_goes_on_alone(seed: int) -> None:
    world = healthy(seed)
    master = world.master
    for name in NAMES:
        if name != master.name:
            world.cuts |= {(name, master.name), (master.name, name)}
    assert outage(world) < LEASE_S
    assert world.master is master
    assert in_sync(world) == {master.name}
    world.run_until(world.now + 20)
    assert epoch(world) == 1
    world.cuts.clear()
    assert world.run_until(world.now + 15, lambda: in_sync(world) == set(NAMES))


@pytest.mark.parametrize("seed", SEEDS)
def test_reports_that_are_lost_on_the_way_strike_the_follower(seed: int) -> None:
    world = healthy(seed)
    master = world.master
    follower = next(name for name in NAMES if name != master.name)
    world.cuts.add((follower, master.name))
    assert outage(world) < LEASE_S
    assert follower not in in_sync(world)
    assert epoch(world) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_an_old_master_that_comes_back_follows_and_is_in_sync_again(seed: int) -> None:
    world = healthy(seed)
    old = world.master
    cut_off(world, old)
    outage(world)
    confirmed = old.machine.confirmed
    world.run_until(world.now + 3)
    assert old.machine.confirmed == confirmed
    world.cuts.clear()
    world.engine.cut_to.clear()
    world.engine.cut_from.clear()
    assert world.run_until(world.now + 15, lambda: in_sync(world) == set(NAMES))
    assert old.machine.state is State.FOLLOWER


@pytest.mark.parametrize("seed", SEEDS)
def test_a_paused_master_that_resumes_acknowledges_nothing_more(seed: int) -> None:
    world = healthy(seed)
    old = world.master
    old.pause()
    outage(world)
    confirmed = old.machine.confirmed
    old.resume()
    for _ in range(100):
        old.append(1)
    world.run_until(world.now + 1)
    assert old.machine.confirmed <= max(confirmed, len(world.check.truth))
    assert old.machine.state is State.FOLLOWER


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_killed_together_work_again_without_a_person(seed: int) -> None:
    world = healthy(seed)
    for node in world.nodes.values():
        node.kill()
    for node in world.nodes.values():
        world.at(world.now + 1, node.start)
    assert outage(world) < LEASE_S + 3


@pytest.mark.parametrize("seed", SEEDS)
def test_all_members_that_lost_power_with_unflushed_bytes_wait_for_a_person(seed: int) -> None:
    world = healthy(seed)
    if world.master.flushes:
        return  # with SYNC_FLUSH nothing was lost
    for node in world.nodes.values():
        node.lose_power()
        world.at(world.now + 1, node.start)
    world.run_until(world.now + 30)
    assert epoch(world) == 1
    assert all(node.machine.refusal for node in world.nodes.values())
    world._force()
    assert outage(world) < 2
    assert world.run_until(world.now + 15, lambda: in_sync(world) == set(NAMES))


@pytest.mark.parametrize("seed", SEEDS)
def test_with_sync_flush_members_that_lost_power_work_again_without_a_person(seed: int) -> None:
    world = World(seed, rates=Rates())
    world.min_in_sync = 1
    for node in world.nodes.values():
        node.flushes = True
    world.begin()
    for at in range(1, 3000):
        world.at(at / 50, world.load)
    world.run_until(8)
    for node in world.nodes.values():
        node.lose_power()
        world.at(world.now + 1, node.start)
    assert outage(world) < LEASE_S + 4


@pytest.mark.parametrize("seed", SEEDS)
def test_clocks_that_jump_an_hour_change_nothing(seed: int) -> None:
    world = healthy(seed)
    for node in world.nodes.values():
        node.offset += 3600
    assert outage(world) < 1
    world.run_until(world.now + 10)
    assert epoch(world) == 1
