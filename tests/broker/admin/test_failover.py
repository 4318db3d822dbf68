"""What a member of a set answers to tools: CometMQ's own requests, and those that mqadmin sends to a controller."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.member_brokers import BrokerSet, broker_set
from tests.helpers.stand_ins import MARKER_BYTES, stand_ins
from tests.helpers.waiting import wait_for

from cometmq.auth.policies import EntryInfo, PolicyInfo
from cometmq.auth.user_admin import UserInfo
from cometmq.broker.failover import events as e
from cometmq.broker.failover.changes import ChangeLog
from cometmq.broker.failover.states import State
from cometmq.broker.failover.status import status_of
from cometmq.broker.limits import MAX_FAILOVER_CHANGES, MAX_SHOWN_EPOCHS
from cometmq.client.admin import Admin
from cometmq.client.errors import BrokerError
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.command import RemotingCommand
from cometmq.remoting.failover.bodies import FailoverStatus
from cometmq.remoting.failover.headers import (
    CleanBrokerDataRequestHeader,
    ElectMasterRequestHeader,
    ForceMasterRequestHeader,
    GetReplicaInfoRequestHeader,
)
from cometmq.remoting.headers import Header
from cometmq.remoting.security import Security
from cometmq.remoting.signing import Credentials
from cometmq.testing import VirtualClock
from cometmq.testing.sync import SyncCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SyncCluster]:
    with SyncCluster() as running:
        yield running


@pytest.fixture
def brokers(cluster: SyncCluster, tmp_path: Path) -> Iterator[BrokerSet]:
    with broker_set(cluster, tmp_path) as running:
        yield running


class Tool:
    """Asks single members."""

    def __init__(self, cluster: SyncCluster, brokers: BrokerSet) -> None:
        self._cluster = cluster
        self._brokers = brokers

    def ask(self, member: str, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        async def work() -> RemotingCommand:
            async with Admin(self._cluster.namesrv_address) as admin:
                return await admin.instance.call(
                    self._brokers.address(member), code, header, body, doing="asking", timeout_s=5
                )

        return self._cluster.call(work())

    def json(self, member: str, code: int, header: Header | None = None, body: bytes = b"") -> Any:
        return json.loads(self.ask(member, code, header, body).body)

    def status(self, member: str) -> FailoverStatus:
        async def work() -> FailoverStatus:
            async with Admin(self._cluster.namesrv_address) as admin:
                return await admin.failover_status(self._brokers.address(member))

        return self._cluster.call(work())

    def hand_over(self, member: str, **options: str) -> None:
        async def work() -> None:
            async with Admin(self._cluster.namesrv_address) as admin:
                await admin.hand_over(self._brokers.address(member), options.pop("name", "orders"), **options)

        self._cluster.call(work())


@pytest.fixture
def tool(cluster: SyncCluster, brokers: BrokerSet) -> Tool:
    return Tool(cluster, brokers)


# --- CometMQ's own requests --------------------------------------------------------------------------
def test_every_member_shows_its_own_log_and_the_master_also_those_of_the_others(tool: Tool, brokers: BrokerSet) -> None:
    brokers.members["a"].append(1_000)
    master, follower = tool.status("a"), tool.status("b")
    assert (master.state, master.epoch, master.end, master.confirmed) == ("master", 1, MARKER_BYTES + 1_000, 1_100)
    assert (follower.state, follower.end, follower.log_epoch) == ("follower", 1_100, 1)
    assert [(one.member, one.end, one.counted, one.late) for one in master.progress] == [
        ("b#1", 1_100, True, False),
        ("c#1", 1_100, True, False),
    ]
    assert follower.progress == []
    assert master.document is not None
    assert (master.document.master, master.document.in_sync) == ("a#1", ["a#1", "b#1", "c#1"])
    assert {one.name: one.broker_id for one in master.document.replicas} == {"a": 1, "b": 2, "c": 3}
    assert (master.refusal, "this member is follower" in follower.refusal) == ("", True)
    assert [one.serial for one in master.changes] == list(range(1, master.document.serial + 1))
    assert (master.changes[0].in_sync, master.changes[-1].in_sync) == (["a#1"], ["a#1", "b#1", "c#1"])
    assert "caught up" in master.changes[-1].why


def test_a_handover_is_answered_once_the_other_member_is_the_master(tool: Tool) -> None:
    tool.hand_over("a", to="c", why="upgrade")
    status = tool.status("c")
    assert (status.state, status.epoch, status.elections) == ("master", 2, 1)
    assert "handed over by a person at 127.0.0.1" in status.reason
    assert status.reason.endswith(": upgrade")


@pytest.mark.parametrize(
    ("member", "options", "why"),
    [
        ("b", {}, "b#1 is not the master, it is follower"),
        ("a", {"to": "x"}, "x is not in sync"),
        ("a", {"name": "payments"}, "this broker is a member of orders, and not of payments"),
        ("a", {"why": "x" * 600}, "the reason has 600 characters"),
    ],
)
def test_a_handover_that_is_not_possible_says_why(tool: Tool, member: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(BrokerError, match=why):
        tool.hand_over(member, **options)
    assert tool.status("a").state == "master"


def test_a_forced_election_demands_what_the_person_has_seen(tool: Tool, brokers: BrokerSet) -> None:
    for wrong in (("b#2", 1), ("c#1", 1), ("b#1", 2)):
        with pytest.raises(BrokerError, match="look at cometmq failover status again") as caught:
            tool.ask("b", RequestCode.FORCE_MASTER, ForceMasterRequestHeader("orders", *wrong))
        assert caught.value.code == ResponseCode.INVALID_PARAMETER
    with pytest.raises(BrokerError, match="the set has a master") as caught:
        tool.ask("b", RequestCode.FORCE_MASTER, ForceMasterRequestHeader("orders", "b#1", 1))
    assert caught.value.code == ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
    brokers.kill("a")
    tool.ask("b", RequestCode.FORCE_MASTER, ForceMasterRequestHeader("orders", "b#1", 1, "a burnt"))
    status = tool.status("b")
    assert (status.state, status.epoch) == ("master", 2)
    assert "forced by a person at 127.0.0.1" in status.reason
    assert status.reason.endswith("a burnt")
    assert status.reason in [one.why for one in status.changes]


def test_a_member_that_waits_for_a_person_says_what_to_do(tool: Tool, brokers: BrokerSet) -> None:
    brokers.members["b"].give(e.DocumentRead(10**6, None, "", {}))  # the engine was restored from a backup
    status = tool.status("b")
    assert (status.state, status.refusal != "") == ("halted", True)
    assert "the engine has no document" in status.reason
    assert "--bootstrap" in status.next_step


def test_an_engine_that_does_not_answer_is_shown(tool: Tool, brokers: BrokerSet) -> None:
    assert tool.status("a").engine_trouble == ""
    brokers.members["a"].is_cut = True
    brokers.members["a"].give(e.EngineChanged())
    assert tool.status("a").engine_trouble == "no endpoint of the engine answers"
    assert tool.status("a").state == "master"


def test_the_last_changes_are_bounded_and_counted() -> None:
    clock = VirtualClock()
    peers = stand_ins("a", "b", clock=clock)
    for number in range(MAX_FAILOVER_CHANGES):
        now, other = ("a", "b") if number % 2 == 0 else ("b", "a")
        peers[other].copy()
        peers[now].give(e.HandOver(other, f"change {number}"))
        peers[now].copy()
    changes: ChangeLog = peers["a"].changes
    assert (len(changes.documents), changes.elections) == (MAX_FAILOVER_CHANGES, MAX_FAILOVER_CHANGES)
    assert [one.epoch for one in changes.documents][-1] == MAX_FAILOVER_CHANGES + 1
    since = changes.since_ms
    clock.advance(5)
    peers["a"].give(e.Tick())
    assert changes.since_ms == since
    assert status_of(peers["a"], "c", "n", clock.monotonic()).since_ms == since


# --- requests to a controller ------------------------------------------------------------------------
def test_any_member_names_the_master_as_the_controller(tool: Tool, brokers: BrokerSet) -> None:
    for member, leads in (("a", "true"), ("b", "false")):
        fields = tool.ask(member, RequestCode.CONTROLLER_GET_METADATA_INFO).ext_fields
        assert fields == {
            "group": "orders",
            "controllerLeaderId": "a",
            "controllerLeaderAddress": brokers.address("a"),
            "isLeader": leads,
            "peers": "".join(f"{brokers.address(one)};" for one in ("a", "b", "c")),
        }


def test_the_sync_state_has_the_fields_of_a_controller(tool: Tool, brokers: BrokerSet) -> None:
    found = tool.json("b", RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["orders","unknown"]')
    (info,) = found["replicasInfoTable"].values()
    assert (info["masterBrokerId"], info["masterAddress"], info["masterEpoch"]) == (1, brokers.address("a"), 1)
    assert info["syncStateSetEpoch"] == brokers.serial()
    assert info["inSyncReplicas"][1] == {
        "brokerName": "orders",
        "brokerId": 2,
        "brokerAddress": brokers.address("b"),
        "alive": True,
    }
    assert info["notInSyncReplicas"] == []
    for body in (b"", b"{", b'{"a": 1}', b"[" * 100_000, b"x" * 100_000):
        with pytest.raises(BrokerError):
            tool.json("b", RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)


def test_the_replica_info_names_the_ids_of_the_in_sync_set(tool: Tool, brokers: BrokerSet) -> None:
    answer = tool.ask("c", RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader("orders"))
    assert answer.ext_fields == {"masterBrokerId": "1", "masterAddress": brokers.address("a"), "masterEpoch": "1"}
    assert json.loads(answer.body) == {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": brokers.serial()}
    with pytest.raises(BrokerError, match="not of payments") as caught:
        tool.ask("c", RequestCode.CONTROLLER_GET_REPLICA_INFO, GetReplicaInfoRequestHeader("payments"))
    assert caught.value.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST


def test_the_epochs_of_a_log_end_where_the_next_begins(tool: Tool, brokers: BrokerSet) -> None:
    brokers.members["a"].append(1_000)
    tool.hand_over("a", to="b")
    found = tool.json("b", RequestCode.GET_BROKER_EPOCH_CACHE)
    assert found["epochList"] == [
        {"epoch": 1, "startOffset": 0, "endOffset": 1_100},
        {"epoch": 2, "startOffset": 1_100, "endOffset": 1_200},
    ]
    assert (found["brokerName"], found["brokerId"], found["maxOffset"], found["epoch"]) == ("orders", 0, 1_200, 2)
    assert tool.json("c", RequestCode.GET_BROKER_EPOCH_CACHE)["brokerId"] == 3


def test_a_tool_gets_the_newest_epochs_of_a_long_history(tool: Tool, brokers: BrokerSet) -> None:
    brokers.members["c"].epochs = [(number + 1, number * 10) for number in range(50_000)]
    brokers.members["c"].end = 500_000
    found = tool.json("c", RequestCode.GET_BROKER_EPOCH_CACHE)["epochList"]
    assert (len(found), found[-1]["epoch"], found[-1]["endOffset"]) == (MAX_SHOWN_EPOCHS, 50_000, 500_000)


def test_a_master_is_elected_by_its_broker_id(tool: Tool, brokers: BrokerSet) -> None:
    header = ElectMasterRequestHeader("DefaultCluster", "orders", 3)
    answer = tool.ask("a", RequestCode.CONTROLLER_ELECT_MASTER, header)
    assert answer.ext_fields == {
        "masterBrokerId": "3",
        "masterAddress": brokers.address("c"),
        "masterEpoch": "2",
        "syncStateSetEpoch": str(brokers.serial()),
    }
    group = json.loads(answer.body.replace(b"{0:", b'{"0":').replace(b",1:", b',"1":').replace(b",2:", b',"2":'))
    assert group["brokerAddrs"] == {"0": brokers.address("c"), "1": brokers.address("a"), "2": brokers.address("b")}
    again = tool.ask("c", RequestCode.CONTROLLER_ELECT_MASTER, header)
    assert again.ext_fields is not None
    assert again.ext_fields["masterEpoch"] == "2"
    with pytest.raises(BrokerError, match=r"no replica of orders has the broker id 9; it has 1 \(a\), 2 \(b\), 3"):
        tool.ask("c", RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterRequestHeader(None, None, 9))


def test_a_replica_that_is_gone_is_cleaned_and_one_that_lives_is_not(tool: Tool, brokers: BrokerSet) -> None:
    with pytest.raises(BrokerError, match="the replica b is in sync or present"):
        tool.ask("a", RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader("orders", None, "2"))
    with pytest.raises(BrokerError, match="not all of 2;7 are broker ids of orders"):
        tool.ask("a", RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader("orders", None, "2;7"))
    brokers.kill("b")
    tool.ask("a", RequestCode.CLEAN_BROKER_DATA, CleanBrokerDataRequestHeader("orders"))
    document = tool.status("a").document
    assert document is not None
    assert [one.name for one in document.replicas] == ["a", "c"]


def test_requests_of_apaches_brokers_to_a_controller_are_refused_with_the_next_step(tool: Tool) -> None:
    for code, words in (
        (RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, "brokerRole=SLAVE"),
        (RequestCode.CONTROLLER_REGISTER_BROKER, "brokerRole=SLAVE"),
        (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, "brokerRole=SLAVE"),
        (RequestCode.CONTROLLER_APPLY_BROKER_ID, "brokerRole=SLAVE"),
        (RequestCode.UPDATE_CONTROLLER_CONFIG, "change broker.conf"),
    ):
        with pytest.raises(BrokerError, match="CometMQ has no controller") as caught:
            tool.ask("a", code)
        assert caught.value.code == ResponseCode.CONTROLLER_INVALID_REQUEST
        assert words in str(caught.value)
    text = tool.ask("a", RequestCode.GET_CONTROLLER_CONFIG).body.decode()
    assert "minInSyncReplicas=1\n" in text
    assert "enableElectUncleanMaster=false\n" in text


def test_a_member_that_has_read_nothing_answers(tool: Tool, brokers: BrokerSet) -> None:
    member = brokers.members["b"]
    member.machine.view.document = None
    member.machine.state = State.STARTING
    assert tool.status("b").document is None
    fields = tool.ask("b", RequestCode.CONTROLLER_GET_METADATA_INFO).ext_fields
    assert fields is not None
    assert fields["controllerLeaderAddress"] == brokers.address("b")
    assert tool.json("b", RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=b'["orders"]') == {"replicasInfoTable": {}}
    assert tool.json("b", RequestCode.GET_BROKER_EPOCH_CACHE)["brokerId"] == -1
    with pytest.raises(BrokerError, match="has not read the set's document"):
        tool.ask("b", RequestCode.CONTROLLER_ELECT_MASTER, ElectMasterRequestHeader(None, "orders", 1))


def test_commands_need_the_permission_to_change_the_cluster_and_are_audited(
    tmp_path: Path,
) -> None:
    keys = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"secret-of-root"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"servers","secretKey":"secret-of-servers"}',
    }
    of_brokers: dict[str, Any] = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": keys["initAuthenticationUser"],
        "inner_client_authentication_credentials": keys["innerClientAuthenticationCredentials"],
        "audit_log_enable": True,
    }
    with (
        SyncCluster(broker_keys=keys) as cluster,
        broker_set(cluster, tmp_path, members=("a", "b"), **of_brokers) as set_,
    ):
        root = Security(Credentials("root", "secret-of-root"))
        reader = Security(Credentials("reader", "secret-of-reader"))
        at = set_.address("a")

        async def work() -> None:
            async with Admin(cluster.namesrv_address, security=root) as admin:
                await admin.create_user(UserInfo("reader", "secret-of-reader", "Normal"), address=at)
                entry = EntryInfo("Cluster:*", ["Get"], [], "Allow")
                await admin.put_policies("reader", [PolicyInfo("Custom", [entry])], address=at)
            async with Admin(cluster.namesrv_address, security=reader) as admin:
                assert (await admin.failover_status(at)).state == "master"
                with pytest.raises(BrokerError, match="NO_PERMISSION"):
                    await admin.hand_over(at, "orders")
                with pytest.raises(BrokerError, match="NO_PERMISSION"):
                    await admin.force_master(at, ForceMasterRequestHeader("orders", "a#1", 1))
            async with Admin(cluster.namesrv_address) as admin:
                with pytest.raises(BrokerError, match="NO_PERMISSION"):
                    await admin.failover_status(at)
            async with Admin(cluster.namesrv_address, security=root) as admin:
                await admin.hand_over(at, "orders", to="b", why="upgrade")

        cluster.call(work())
        log = next((tmp_path / "a").rglob("audit.log"))
        wait_for(lambda: "upgrade" in log.read_text(), "the entry of the handover")
        entries = [json.loads(line) for line in log.read_text().splitlines() if '"HAND_OVER"' in line]
        by = {(one["account"], one["event"]) for one in entries}
        assert ("reader", "denied") in by
        done = next(one for one in entries if one["account"] == "root")
        assert done["fields"] == {"brokerName": "orders", "to": "b", "why": "upgrade"}
