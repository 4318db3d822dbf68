"""``cometmq failover`` and mqadmin's requests with real members, which elect, hand over and halt."""

from __future__ import annotations

import asyncio
import re
import socket
from pathlib import Path
from typing import Any

from tests.broker.member.sets import MemberSet, member_set, until
from tests.cli.conftest import CommandLine, Result

from cometmq.client.admin import Admin
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.failover.headers import ElectMasterRequestHeader


async def run(members: MemberSet, *words: str) -> Result:
    """Run a command while this loop serves it."""
    return await asyncio.to_thread(CommandLine(members.namesrv), "failover", *words)


async def shown(members: MemberSet, *words: str) -> dict[str, Any]:
    """The set as ``status -o json`` shows it."""
    (found,) = (await run(members, "status", "-o", "json", *words)).json()
    return dict(found)


def servers(members: MemberSet, *names: str) -> list[str]:
    """The options that name members."""
    return [word for name in names for word in ("--server", members.members[name].address)]


async def test_a_set_is_shown_by_any_member(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        done = await run(members, "status")
        assert done.code == 0, done.out + done.err
        assert len(re.findall(r"^set +[abc] +(?:master|follower) +yes ", done.out, re.MULTILINE)) == 3
        assert members.master is not None
        found = await shown(members, *servers(members, "b"))
        assert (found["master"], found["epoch"], found["to_do"]) == (members.master.machine.me.name, 1, [])
        assert len(found["members"]) == 3


async def test_a_handover_is_answered_although_the_masters_life_ends(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        before = members.master
        assert before is not None
        to = next(name for name in members.members if name != before.machine.me.name)
        done = await run(members, "handover", "--to", to, "--why", "upgrade")
        assert done.code == 0, done.err
        assert re.fullmatch(rf"{to} is the master of set \(\d\.\d s\)\.\n", done.err), done.err
        found = await shown(members)
        assert (found["master"], found["epoch"]) == (to, 2)
        assert re.search(r"handed over by a person at .*: upgrade", found["why"])


async def test_a_member_that_is_frozen_does_not_delay_a_handover(tmp_path: Path) -> None:
    """Its port accepts connections, and nothing answers."""
    async with member_set(tmp_path) as members:
        before = members.master
        assert before is not None
        frozen, to = (name for name in members.members if name != before.machine.me.name)
        address = members.members[frozen].address
        await members.kill(frozen)
        await until(lambda: frozen not in members.in_sync)
        host, _, port = address.rpartition(":")
        with socket.create_server((host, int(port))):
            done = await run(members, "handover", *servers(members, before.machine.me.name), "--timeout", "3")
        took = re.search(rf"{to} is the master of set \(([\d.]+) s\)", done.err)
        assert took is not None, done.err
        assert float(took[1]) < 3


async def test_mqadmin_elects_a_master_and_gets_its_answer(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members, Admin(members.namesrv) as admin:
        assert members.master is not None
        document = members.store.document
        assert document is not None
        other = next(one for one in document.replicas if one.name != document.master.name)
        answer = await admin.instance.call(
            members.master.address,
            RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequestHeader("DefaultCluster", "set", other.broker_id),
            doing="electing",
            timeout_s=3,
        )
        assert answer.ext_fields is not None
        assert (answer.ext_fields["masterAddress"], answer.ext_fields["masterEpoch"]) == (other.address, "2")


async def test_a_dead_master_is_replaced_and_the_reason_is_shown(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        dead = members.master
        assert dead is not None
        name = dead.machine.me.name
        await members.kill(name)
        await until(lambda: members.master is not None)
        found = await shown(members)
        assert (found["master"] != name, found["epoch"]) == (True, 2)
        assert re.search(r"was elected: the process of .* is dead|is silent, and its lease is gone", found["why"])
        assert f"{name} does not answer" in " ".join(found["to_do"])
        assert {one["member"]: one["state"] for one in found["members"]}[name] == "does not answer"


async def test_a_person_forces_a_master_when_nobody_is_left(tmp_path: Path) -> None:
    async with member_set(tmp_path, 2) as members:
        assert members.master is not None
        name = members.master.machine.me.name
        other = next(one for one in members.members if one != name)
        await members.stop(other)
        await until(lambda: members.in_sync == {name})
        await members.kill(name)
        await members.start(other)
        view = members.members[other].machine.view
        await until(lambda: view.document is not None and name not in view.presences)  # its lease has ended
        asked = servers(members, other)
        found = await run(members, "status", *asked)
        assert found.code == 1
        assert f"nobody may be elected: {name}#" in found.err
        assert f"cometmq failover force -b set --member {other}" in found.err
        refused = await run(members, "handover", *asked)
        assert (refused.code, "nobody may be elected" in refused.err) == (1, True)
        done = await run(members, "force", "--yes", "--why", "its disk burnt", *asked)
        assert done.code == 0, done.err
        assert f"{other} is the master of set." in done.err
        assert members.members[other].machine.epoch == 2


async def test_members_that_wait_for_a_person_answer(tmp_path: Path) -> None:
    async with member_set(tmp_path) as members:
        members.store.document, members.store._document_version = None, 0  # the engine lost its disk
        for listener in tuple(members.store.listeners):
            listener()
        await until(lambda: all(one.machine.next_step for one in members.members.values()))
        found = await run(members, "status", *servers(members, *"abc"))
        while found.out.count(" halted ") < 3:  # the master becomes a slave first
            found = await run(members, "status", *servers(members, *"abc"))
        assert found.code == 1
        assert "--bootstrap" in found.err
