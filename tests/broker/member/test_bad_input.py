"""What goes wrong around a set: engines that answer nonsense, documents that do not fit, members that look the same.

Each member stops or refuses with a sentence that names the next step, and loses nothing.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, bodies, lease_ms, member_set, send, until
from tests.broker.replication.following import connect

from cometmq.broker.controller import Broker
from cometmq.broker.failover.document import DocumentError
from cometmq.broker.failover.engines.interface import Snapshot
from cometmq.broker.failover.states import State
from cometmq.clock import SystemClock
from cometmq.message.message import Message
from cometmq.remoting.codes import ResponseCode
from cometmq.store.errors import StoreFullError
from cometmq.testing import Cluster

pytestmark = pytest.mark.usefixtures("lines")


def logged(caplog: pytest.LogCaptureFixture, *words: str) -> bool:
    """Whether one line of the log has all these words."""
    return any(all(word in record.getMessage() for word in words) for record in caplog.records)


async def test_a_document_that_nobody_can_read_stops_no_master(
    pair: MemberSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def read() -> Snapshot:
        raise DocumentError("the engine's document of this set is not valid: epoch is 0", next_step="do not edit it")

    for engine in pair.engines.values():
        monkeypatch.setattr(engine, "read", read)
    await until(lambda: logged(caplog, "is not valid", "do not edit it", "change nothing until then"))
    await send(pair, b"meanwhile")
    assert pair.master is not None
    assert pair.master.machine.state is State.MASTER
    monkeypatch.undo()
    await send(pair, b"after")
    assert set(bodies(pair.master)) == {b"before", b"meanwhile", b"after"}


async def test_an_older_document_halts_every_member_that_knows_better(
    pair: MemberSet, caplog: pytest.LogCaptureFixture
) -> None:
    document = pair.store.document
    assert document is not None
    older = replace(document, serial=1, in_sync=frozenset({document.master}))
    pair.edit(older)
    await until(lambda: all(member.machine.state is State.HALTED for member in pair.members.values()))
    assert logged(caplog, "the engine has epoch 1, change 1, and has had", "restored from a backup", "--bootstrap")
    pair.edit(document)  # the operator restores the newest one, and starts the members again
    for name in list(pair.members):
        await pair.stop(name)
    for name in ("a", "b"):
        await pair.start(name)
    await until(lambda: pair.master is not None)
    assert pair.master is not None
    assert bodies(pair.master)[b"before"] == 1


async def test_a_store_of_another_set_is_refused(pair: MemberSet, caplog: pytest.LogCaptureFixture) -> None:
    follower = next(name for name, member in pair.members.items() if not member.is_serving)
    await pair.stop(follower)
    document = pair.store.document
    assert document is not None
    pair.edit(replace(document, set_id="0123456789abcdef"))
    await pair.start(follower)
    await until(lambda: pair.members[follower].machine.state is State.HALTED)
    assert logged(caplog, "belongs to set 0123456789abcdef", "two clusters must not share a prefix")


async def test_more_members_are_required_than_there_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with member_set(tmp_path, 2, minInSyncReplicas="3") as members:
        assert members.master is not None
        with pytest.raises(Exception, match="2 members are in sync, fewer than minInSyncReplicas=3"):
            await send(members, b"refused")
        assert not bodies(members.master)
        await members.start("c")
        await until(lambda: members.in_sync == {"a", "b", "c"})
        await send(members, b"stored")
        assert set(bodies(members.master)) == {b"stored"}


async def test_a_store_with_an_older_log_is_a_new_member_that_copies_the_rest(
    pair: MemberSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = pair.master
    assert master is not None
    follower = next(name for name, member in pair.members.items() if member is not master)
    before = pair.members[follower].machine.me
    await pair.stop(follower)
    (log,) = (tmp_path / follower / "commitlog").iterdir()
    older = log.read_bytes()
    await pair.start(follower)
    await until(lambda: pair.in_sync == {"a", "b"})
    await send(pair, b"acknowledged")
    await pair.stop(follower)
    log.write_bytes(older)
    member = await pair.start(follower)
    assert member.machine.me.generation == before.generation + 1
    assert logged(caplog, "this store has lost messages, so it is a new member")
    await until(lambda: pair.in_sync == {"a", "b"})
    document = pair.store.document
    assert document is not None
    assert member.machine.me in document.in_sync
    await until(lambda: bodies(member)[b"acknowledged"] == 1)


async def test_an_engine_that_is_away_stops_nobody(pair: MemberSet, caplog: pytest.LogCaptureFixture) -> None:
    master = pair.master
    assert master is not None
    for engine in pair.engines.values():
        engine.is_cut = True
    await asyncio.sleep(1.5 * lease_ms() / 1000)
    await send(pair, b"meanwhile")
    assert master.machine.state is State.MASTER
    assert logged(caplog, "the engine does not answer", "will retry, and change nothing until then")
    for engine in pair.engines.values():
        engine.is_cut = False
    await until(lambda: logged(caplog, "the engine answers again"))
    await send(pair, b"after")
    assert set(bodies(master)) == {b"before", b"meanwhile", b"after"}
    assert pair.in_sync == {"a", "b"}


async def test_a_master_whose_disk_fails_hands_over_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with member_set(tmp_path, 3) as members:
        await send(members, b"before")
        old = members.master
        assert old is not None
        old.broker.store._maintenance.retention.refusal = StoreFullError("no space left on device")
        await until(lambda: members.master not in (None, old))
        assert logged(caplog, "this member cannot be the master: no space left on device")
        assert members.master is not None
        await send(members, b"after")
        await until(lambda: members.in_sync == {"a", "b", "c"})  # its next life finds space
        assert set(bodies(members.master)) == {b"before", b"after"}


async def test_a_store_with_messages_of_another_cluster_is_not_taken_for_a_copy(
    pair: MemberSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = pair.master
    assert master is not None
    single = Broker(pair.config("stranger", failover="", namesrvAddr=""))
    await single.start()
    wire = await connect(single)
    assert (await wire.send("T", b"of another cluster")).code == ResponseCode.SUCCESS
    await wire.close()
    await single.stop()
    end = single.store.max_physical_offset
    stranger = await pair.start("stranger")
    await until(lambda: logged(caplog, "they may not be the master's", "start with an empty store"))
    assert stranger.broker.store.max_physical_offset == end
    assert not (tmp_path / "stranger" / "parted").exists()
    assert pair.in_sync == {"a", "b"}


async def test_a_pair_that_was_made_by_hand_becomes_a_set(tmp_path: Path) -> None:
    async with Cluster(slaves=1, data=tmp_path / "pair") as cluster:
        await cluster.send(Message("T", b"before"))
        await until(cluster.has_replicated)
    async with member_set(tmp_path, 0) as members:
        for name, root in (("a", "broker-0"), ("b", "broker-0-slave-1")):
            shutil.copytree(tmp_path / "pair" / root, tmp_path / name)
        await members.start("a", bootstraps=True)
        await until(lambda: members.master is not None)
        await members.start("b")
        await until(lambda: members.in_sync == {"a", "b"})
        await members.kill("a")
        await until(lambda: members.master is not None)
        assert members.master is not None
        assert bodies(members.master) == {b"before": 1}


class AheadClock(SystemClock):
    """A clock whose date is an hour ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 3_600_000


async def test_clocks_an_hour_apart_change_nothing(tmp_path: Path) -> None:
    async with member_set(tmp_path, 1) as members:
        await send(members, b"one")
        await members.start("b", clock=AheadClock())
        await until(lambda: members.in_sync == {"a", "b"})
        for body, killed in ((b"two", "a"), (b"three", "b")):
            await send(members, body)
            await members.kill(killed)
            await until(lambda: members.master is not None)
            await members.start(killed)
            await until(lambda: members.in_sync == {"a", "b"})
        assert members.master is not None
        assert set(bodies(members.master)) == {b"one", b"two", b"three"}
