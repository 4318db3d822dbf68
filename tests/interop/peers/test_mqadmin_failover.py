"""mqadmin 5.5.0's commands about a controller, unmodified, against a set that elects its master."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.broker.member.sets import MemberSet, member_set, until
from tests.interop.peers.test_mqadmin import MqAdmin

pytestmark = pytest.mark.interop
VERSION = "5.5.0"


def names(members: MemberSet) -> tuple[str, list[str]]:
    """The name of the master, and those of the others."""
    assert members.master is not None
    master = members.master.machine.me.name
    return master, sorted(set(members.members) - {master})


def broker_id(members: MemberSet, name: str) -> int:
    document = members.store.document
    assert document is not None
    replica = document.replica(name)
    assert replica is not None
    return replica.broker_id


async def test_the_commands_about_a_controller_work_with_any_member(tmp_path: Path) -> None:
    with MqAdmin(VERSION, tmp_path) as mqadmin:
        async with member_set(tmp_path / "set") as members:

            async def run(command: str, *words: str) -> str:
                text, errors = await asyncio.to_thread(mqadmin, command, *words, "-n", members.namesrv)
                assert "Exception" not in errors, errors
                return text

            master, (next_one, other) = names(members)
            at = {name: member.address for name, member in members.members.items()}
            asked = at[other]  # any member knows the master
            metadata = await run("getControllerMetaData", "-a", asked)
            assert re.search(rf"#ControllerGroup\s+set\n#ControllerLeaderId\s+{master}\n", metadata), metadata
            assert f"#ControllerLeaderAddress\t{at[master]}" in metadata
            assert metadata.count("#Peer") == 3

            state = await run("getSyncStateSet", "-a", asked, "-b", "set")
            assert re.search(rf"#MasterAddr\s+{at[master]}\n#MasterEpoch\s+1\n", state), state
            assert "#SyncStateSetNums\t3" in state
            assert state.count("InSyncReplica:") == 3
            assert "NotInSyncReplica" not in state
            by_cluster = await run("getSyncStateSet", "-a", asked, "-c", "DefaultCluster")
            assert by_cluster.count("InSyncReplica:") == 3

            epochs = await run("getBrokerEpoch", "-b", "set")
            assert epochs.count("#brokerName\tset") == 3
            assert epochs.count("#Epoch: EpochEntry{epoch=1, startOffset=0, endOffset=") == 3, epochs

            config = await run("getControllerConfig", "-a", asked)
            assert re.search(r"minInSyncReplicas\s+=\s+1", config), config
            refused, errors = await asyncio.to_thread(
                mqadmin, "updateControllerConfig", "-a", asked, "-k", "a", "-v", "b", "-n", members.namesrv
            )
            assert "CometMQ has no controller" in refused + errors

            status = await run("haStatus", "-b", at[master])
            assert "#SlaveNum\t2\n#InSyncSlaveNum\t2" in status, status
            assert len(re.findall(r" OK ", status)) == 2

            elected = await run(
                *("electMaster", "-a", asked, "-b", str(broker_id(members, next_one)), "-bn", "set"),
                *("-c", "DefaultCluster"),
            )
            assert re.search(rf"#BrokerMasterAddr\s+{at[next_one]}\n#MasterEpoch\s+2\n", elected), elected
            await until(lambda: members.master is not None and members.in_sync == set(members.members))
            assert names(members)[0] == next_one

            await members.stop(other)
            await until(lambda: members.in_sync == {master, next_one})
            state = await run("getSyncStateSet", "-a", at[master], "-b", "set")
            assert (state.count("\nInSyncReplica:"), state.count("NotInSyncReplica:")) == (2, 1), state
            cleaned = await run(
                *("cleanBrokerMetadata", "-a", at[master], "-b", str(broker_id(members, other)), "-bn", "set"),
                *("-c", "DefaultCluster"),
            )
            assert "clear broker set metadata from controller success" in cleaned, cleaned
            await until(lambda: members.store.document is not None and len(members.store.document.replicas) == 2)
