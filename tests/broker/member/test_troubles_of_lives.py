"""What goes wrong when a life ends or begins: it must not harm the set's next master."""

from __future__ import annotations

import asyncio
import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.disks import FailingDisk, HeldDisk
from tests.broker.member.sets import MemberSet, bodies, member_set, send, until
from tests.broker.replication.following import connect

from cometmq.broker.controller import Broker
from cometmq.broker.failover import events as e
from cometmq.broker.failover.engines.interface import Presence
from cometmq.broker.failover.events import LogState
from cometmq.broker.failover.identity import Identity, read_identity
from cometmq.broker.failover.machine import MemberMachine
from cometmq.broker.failover.options import MemberOptions
from cometmq.broker.failover.states import State
from cometmq.broker.member.driver import Driver
from cometmq.broker.member.identity_file import IdentityFile
from cometmq.broker.member.lives import LifeOptions
from cometmq.client.admin import Admin
from cometmq.client.admin.failover.sets import find_sets
from cometmq.clock import SYSTEM_CLOCK
from cometmq.errors import CometMQError
from cometmq.remoting.bodies import TopicConfig, TopicRouteData, decode_body
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetRouteInfoRequestHeader


async def registered_master(members: MemberSet) -> str | None:
    """The address to which the nameserver sends producers."""
    client = RemotingClient(clock=SYSTEM_CLOCK)
    asked = GetRouteInfoRequestHeader(topic="set")
    answer = await client.invoke(members.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
    await client.close()
    if answer.body == b"":
        return None
    (broker,) = decode_body(TopicRouteData, answer.body).broker_datas
    return broker.broker_addrs.get(0)


async def test_an_old_master_that_stops_slowly_does_not_replace_the_new_one_at_the_nameservers(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        old = members.master
        assert old is not None
        life, goes_on = old.broker, asyncio.Event()
        life.on_stop("a slow step", lambda: asyncio.wait([asyncio.ensure_future(goes_on.wait())], timeout=5))
        await old.hand_over("", "a test asks for it")
        await until(lambda: members.master not in (None, old))
        new = members.master
        assert new is not None
        address = new.broker.address
        while await registered_master(members) != address:
            await asyncio.sleep(0.01)
        life.topics.put(TopicConfig(topic_name="NewTopic", perm=6, read_queue_nums=4, write_queue_nums=4))
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert await registered_master(members) == address
        goes_on.set()
        await until(lambda: members.in_sync == {"a", "b", "c"})


async def test_a_master_that_cannot_serve_clients_hands_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For example, the port of its gRPC endpoint is in use, which a slave does not open."""
    opened: list[str] = []
    serving: list[Broker] = []

    async def extend(broker: Broker) -> None:
        opened.append(broker.address)
        if broker.address == broken.broker.address:
            raise CometMQError("port 8081 is in use", next_step="choose another port")
        serving.append(broker)

    async with member_set(tmp_path, 1) as members:
        master = members.members["a"]
        broken = await members.start_with("b", LifeOptions(extend=extend))
        await until(lambda: members.in_sync == {"a", "b"})
        tasks = len(asyncio.all_tasks())
        await master.hand_over("", "to the one that cannot serve")
        await until(lambda: len(opened) == 1)
        await until(lambda: members.master is master and master.machine.epoch >= 3)
        assert "the master cannot serve: port 8081 is in use (choose another port)" in caplog.text
        await until(lambda: members.in_sync == {"a", "b"} and broken.machine.state is State.FOLLOWER)
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 5)  # nothing runs twice


async def test_a_master_that_nobody_can_replace_tries_again_to_serve_clients(tmp_path: Path) -> None:
    failures = 2

    async def extend(_: Broker) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise CometMQError("port 8081 is in use", next_step="choose another port")

    async with member_set(tmp_path, 0) as members:
        member = await members.start_with("a", LifeOptions(extend=extend))
        await until(lambda: member.is_serving)
        assert failures == -1
        assert member.machine.epoch == 1
        wire = await connect(member.broker)
        assert (await wire.send("T", b"stored")).code == ResponseCode.SUCCESS
        await wire.close()


async def test_after_a_failed_flush_the_next_process_is_another_member(tmp_path: Path) -> None:
    """The kernel may have dropped the bytes, and a flush of the store that is opened again proves nothing."""
    disk = FailingDisk()
    async with member_set(tmp_path, 1) as members:
        follower = await members.start_with("b", LifeOptions(disk=disk))
        await until(lambda: members.in_sync == {"a", "b"})
        await members.members["a"].hand_over("", "a test asks for it")
        await until(lambda: members.master is follower and members.in_sync == {"a", "b"})
        me = follower.machine.me
        disk.flush_error = errno.EIO
        wire = await connect(follower.broker)
        await wire.send("T", b"not flushed")
        await wire.close()
        await until(lambda: members.master is members.members["a"])
        disk.flush_error = None
        await until(lambda: members.in_sync == {"a"})  # what it reports now may not be on its disk
        await asyncio.sleep(1.5)
        assert members.in_sync == {"a"}
        await members.stop("b")
        saved = read_identity(tmp_path / "b" / "comet" / "failover.json")
        assert saved is not None
        assert not saved.is_clean
        assert not saved.is_solid
        again = await members.start("b")
        assert again.machine.me.generation == me.generation + 1
        await until(lambda: members.in_sync == {"a", "b"})


async def test_a_member_that_cannot_write_who_it_is_does_not_start_until_it_can(tmp_path: Path) -> None:
    async with member_set(tmp_path, 1) as members:
        await members.stop("a")
        in_the_way = tmp_path / "a" / "comet" / "failover.json.tmp"
        in_the_way.mkdir()
        with pytest.raises(CometMQError, match=r"failover\.json cannot be written: .*\(free some disk space"):
            await members.start("a")
        in_the_way.rmdir()
        await members.start("a")
        await until(lambda: members.master is not None)


async def test_a_copied_store_is_noticed_and_does_not_fight_for_the_presence(tmp_path: Path) -> None:
    async with member_set(tmp_path, 2) as members:
        follower = next(name for name, member in members.members.items() if not member.is_serving)
        await members.stop(follower)
        shutil.copytree(tmp_path / follower, tmp_path / "copy")
        original = await members.start(follower)
        await until(lambda: members.in_sync == {"a", "b"})
        changes = members.store._version
        copy = await members.start("copy", failoverMember=follower)
        await until(lambda: State.HALTED in (original.machine.state, copy.machine.state))
        halted = original if original.machine.state is State.HALTED else copy
        assert "two members are called" in halted.machine.reason
        assert "copy" in halted.machine.next_step
        assert members.store._version - changes < 50
        await until(lambda: members.in_sync == {"a", "b"})


async def test_a_failing_action_does_not_prevent_the_others(caplog: pytest.LogCaptureFixture) -> None:
    driver = Driver(clock=SYSTEM_CLOCK)
    done: list[e.Request] = []
    driver.drive(
        MemberMachine(
            MemberOptions("a", "10.0.0.1:10911", "10.0.0.1:10912", "1", "2"),
            Identity(1, "boot"),
            LogState(0, 0, 0),
            SYSTEM_CLOCK.monotonic(),
            SYSTEM_CLOCK.now_ms,
        )
    )

    def fail(_: object) -> None:
        raise RuntimeError("a fault")

    driver.begin({e.Read: fail, e.Swap: done.append, e.Announce: done.append}, lambda: fail(1), lambda: None)
    driver.give(e.DocumentRead(1, None, "", {}))
    assert [type(request) for request in done] == [e.Swap]
    assert "a fault" in caplog.text
    driver.stop()


async def test_a_write_of_the_identity_that_is_cancelled_is_completed_before_the_next(tmp_path: Path) -> None:
    file = IdentityFile(tmp_path)
    identity = Identity(5, "boot")
    for number in range(20):
        task = asyncio.create_task(file.write(identity))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        task.cancel()
        await file.write(replace(identity, is_clean=True))
        assert read_identity(file.path) == replace(identity, is_clean=True)
        await asyncio.gather(task, return_exceptions=True)
        assert read_identity(file.path) == replace(identity, is_clean=True)


async def test_a_slow_disk_ends_no_lease_while_a_life_is_closed_and_the_next_one_opened(tmp_path: Path) -> None:
    """Each flush of the last and of the next life waits until the member has renewed its lease several times."""
    disk = HeldDisk()
    async with member_set(tmp_path, 1) as members:
        slow = await members.start_with("b", LifeOptions(disk=disk))
        await until(lambda: members.in_sync == {"a", "b"})
        await send(members, b"not flushed yet")
        renewals, announce = 0, members.engines["b"].announce

        async def renew(presence: Presence) -> bool:
            nonlocal renewals
            renewals += 1
            return await announce(presence)

        members.engines["b"].announce = renew  # type: ignore[method-assign]
        disk.hold()
        await members.members["a"].hand_over("b", "a test asks for it")  # b closes its life, and opens another one
        held = 0
        while members.master is not slow:
            before, flushes = renewals, disk.flushes
            await until(lambda: renewals >= before + 3 or members.master is slow)  # noqa: B023
            assert "b" in members.store.presences()
            held += disk.flushes > flushes or held == 0
            disk.hold_next()
        disk.go_on()
        assert held >= 2
        await until(lambda: members.in_sync == {"a", "b"})
        assert set(bodies(slow)) == {b"not flushed yet"}


async def test_others_say_why_a_member_is_closed_that_has_no_space_to_cut_its_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingDisk()

    def announced() -> str:
        presence = members.store.presences().get("a")
        return "is away" if presence is None else presence.trouble

    async with member_set(tmp_path, 0, slaveTimeout="500") as members:
        old = await members.start_with("a", LifeOptions(disk=disk))
        await until(lambda: members.master is old)
        for name in ("b", "c"):
            await members.start(name)
        await until(lambda: members.in_sync == {"a", "b", "c"})
        members.engines["a"].is_cut = True
        old.broker.ha.cut_off()
        wire = await connect(old.broker)
        assert (await wire.send("T", b"only here")).code != ResponseCode.SUCCESS
        await wire.close()
        await until(lambda: members.master not in (None, old))
        disk.write_error = errno.ENOSPC
        members.engines["a"].is_cut = False
        await until(lambda: announced().startswith("its log cannot be cut"))
        async with Admin(instance=members.instance()) as admin:
            assert members.master is not None
            ((found,), _) = await find_sets(admin, "set", [members.master.address])
        (said,) = [one for one in found.to_do() if one.startswith("a does not answer")]
        assert "it is alive, and says: its log cannot be cut, so its ports stay closed: " in said
        assert "no space on the disk for the end of the log (free some space" in said
        assert "its log cannot be cut" in caplog.text
        disk.write_error = None
        await until(lambda: members.in_sync == {"a", "b", "c"})
        await until(lambda: not announced())
        assert (tmp_path / "a" / "parted").exists()
