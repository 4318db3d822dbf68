"""Two members with one name, one address or one store: both say what is wrong, and nothing is lost."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, bodies, member_set, send, until

from cometmq.broker.failover.states import State
from cometmq.broker.member.set_member import SetMember
from cometmq.client.admin import Admin
from cometmq.client.admin.failover.sets import find_sets

pytestmark = pytest.mark.usefixtures("lines")


def warned(caplog: pytest.LogCaptureFixture, *words: str) -> int:
    """The number of lines of at least WARNING with all these words."""
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return sum(all(word in line for word in words) for line in said)


async def to_do(members: MemberSet, *further: str) -> list[str]:
    """What ``cometmq failover status`` and the console say."""
    async with Admin(instance=members.instance()) as admin:
        servers = [member.address for member in members.members.values()] if further else []
        (found,), _ = await find_sets(admin, "set", servers)
    return found.to_do()


async def test_a_member_with_a_name_that_is_taken_halts_at_once_and_both_sides_say_why(
    pair: MemberSet, caplog: pytest.LogCaptureFixture
) -> None:
    master = pair.master
    assert master is not None
    name = master.machine.me.name
    twin = await pair.start("twin", failoverMember=name)
    await until(lambda: twin.machine.state is State.HALTED, 3)
    sentence = f"two members are called {name}; the other one is at"
    step = "give each member of a set its own name"
    assert warned(caplog, f"this member waits for a person: {sentence} {master.address}", step) == 1
    assert warned(caplog, "refusing the member", f"{sentence} {twin.address}", step) == 1
    assert any(f"{name}: {sentence} {twin.address}" in one for one in await to_do(pair))
    assert any(f"{name} has halted: {sentence} {master.address}" in one for one in await to_do(pair, twin.address))
    assert not (pair.root / "twin" / "parted").exists()
    await send(pair, b"after")
    assert set(bodies(master)) == {b"before", b"after"}


@pytest.mark.parametrize("holder", ["master", "follower"])
async def test_a_member_with_an_address_that_is_taken_never_joins_and_both_sides_say_why(
    pair: MemberSet, caplog: pytest.LogCaptureFixture, holder: str
) -> None:
    """The third machine has a copy of another one's broker.conf, with that machine's brokerIP1."""
    master = pair.master
    assert master is not None
    first = next(name for name, one in pair.members.items() if (one is master) == (holder == "master"))
    pair.ports["c"] = pair.ports[first]
    copy = await pair.start("c", bindAddress="127.0.0.2")
    assert copy.address == pair.members[first].address
    sentence = f"two members have the address {copy.address}: {first} and c"
    await until(lambda: warned(caplog, "cannot follow master", sentence, "give c its own brokerIP1"), 5)
    assert warned(caplog, "refusing the member", sentence) == 1
    assert pair.in_sync == {"a", "b"}
    assert any(f"{master.machine.me.name}: {sentence}" in one for one in await to_do(pair))
    assert sentence in copy.trouble
    await send(pair, b"after")
    await pair.stop("c")
    del pair.ports["c"]
    await pair.start("c")  # with its own address
    await until(lambda: pair.in_sync == {"a", "b", "c"})
    assert not await to_do(pair)


async def copied_before_a_message(members: MemberSet) -> tuple[str, SetMember]:
    """Copy the stopped follower's store to ``copy``, start the follower again, and send a message that both have."""
    await send(members, b"before")
    follower = next(name for name, member in members.members.items() if not member.is_serving)
    await members.stop(follower)
    shutil.copytree(members.root / follower, members.root / "copy")
    original = await members.start(follower)
    await until(lambda: members.in_sync == {"a", "b"})
    await send(members, b"after")
    return follower, original


async def test_an_older_copy_of_a_store_never_counts_while_the_original_runs(tmp_path: Path) -> None:
    """The copy has the name of a member in sync, and lacks an acknowledged message."""
    async with member_set(tmp_path, 2) as members:
        follower, original = await copied_before_a_message(members)
        changes = members.store._version
        copy = await members.start("copy", failoverMember=follower)
        assert copy.machine.me.generation == original.machine.me.generation + 1
        await until(lambda: copy.machine.state is State.HALTED, 3)
        assert members.store._version == changes  # it has announced nothing
        assert copy.broker.store.max_physical_offset < original.broker.store.max_physical_offset
        assert original.machine.state is State.FOLLOWER
        assert members.in_sync == {"a", "b"}


async def test_a_process_that_was_killed_is_no_twin(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with member_set(tmp_path, 2) as members:
        for name in ("a", "b"):
            await members.kill(name)
            member = await members.start(name)  # its earlier presence is still there
            await until(lambda: members.master is not None and members.in_sync == {"a", "b"})
            assert member.machine.state is not State.HALTED
        assert not warned(caplog, "two members")
        assert not warned(caplog, "refusing the member")


async def test_a_copy_of_a_stopped_store_is_a_new_member_while_the_original_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It lacks an acknowledged message, and has the name of a member in sync: it must not be elected."""
    async with member_set(tmp_path, 2) as members:
        follower, original = await copied_before_a_message(members)
        generation = original.machine.me.generation
        for name in ("a", "b"):
            await members.kill(name)
        copy = await members.start("copy", failoverMember=follower)
        assert copy.machine.me.generation == generation + 1
        assert warned(caplog, "this store is a copy of another one, or was moved")
        await members.stop("copy")
        again = await members.start(follower)
        assert again.machine.me.generation == generation, "the original has lost nothing"
        await until(lambda: members.master is again)
        assert set(bodies(again)) == {b"before", b"after"}


async def test_a_copy_that_only_the_original_could_refuse_joins_as_a_new_member(tmp_path: Path) -> None:
    """The store was moved to another disk, as one does."""
    async with member_set(tmp_path, 2) as members:
        await send(members, b"before")
        follower = next(name for name, member in members.members.items() if not member.is_serving)
        await members.stop(follower)
        shutil.copytree(tmp_path / follower, tmp_path / "moved")
        shutil.rmtree(tmp_path / follower)
        await until(lambda: len(members.in_sync) == 1)
        await members.start("moved", failoverMember=follower)
        await until(lambda: members.in_sync == {"a", "b"})
