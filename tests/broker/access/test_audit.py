"""The audit log of a broker and a nameserver: what is in it, what never is, floods, full disks, hostile names."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ask
from tests.broker.access.test_users import ALICE, INIT, ROOT, create_user, put_acl
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, pull_header, send_header

from cometmq.auth.audit.reader import read_entries
from cometmq.auth.audit.recorder import BY_THEMSELVES
from cometmq.auth.limits import MAX_AUDIT_KINDS
from cometmq.auth.model import AuthError
from cometmq.broker.controller import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.remoting.admin_headers import (
    CreateAccessConfigRequestHeader,
    CreateTopicRequestHeader,
    DeleteTopicRequestHeader,
    PutKVConfigRequestHeader,
    PutQuotaRequestHeader,
    UpdateUserRequestHeader,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import GetMaxOffsetRequestHeader
from cometmq.remoting.signing import Credentials
from cometmq.testing import VirtualClock

AUDITED: dict[str, Any] = {**INIT, "audit_log_enable": True}
HOSTILE = 'x\n{"time":"forged"}\x1b[2J\x9b31m\x7f\u202e"'


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    """All entries; every line of the file is one."""
    path = tmp_path / "store" / "audit" / "audit.log"
    return list(read_entries(path, lambda file, lines: pytest.fail(f"{lines} lines of {file} are no entries")))


async def written(broker: Broker, tmp_path: Path) -> list[dict[str, Any]]:
    """The entries once the broker has stopped."""
    await broker.stop()
    return entries(tmp_path)


@pytest.fixture
async def audited(start_broker: StartBroker) -> Broker:
    return await start_broker(**AUDITED)


@pytest.fixture
async def wire(audited: Broker, connect_to: ConnectTo) -> Wire:
    return await connect_to(audited)


def topic(name: str) -> CreateTopicRequestHeader:
    return CreateTopicRequestHeader(name, "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)


async def test_who_did_what_to_what_from_where(audited: Broker, wire: Wire, tmp_path: Path) -> None:
    assert (await ask(wire, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic("Orders"))).code == 0
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    await put_acl(wire, ROOT, "alice", ("Topic:Orders", "Pub", "Allow"))
    assert (await ask(wire, ALICE, RequestCode.SEND_MESSAGE_V2, send_header("Orders"))).code == 0
    header = DeleteTopicRequestHeader("Orders")
    assert (await ask(wire, ALICE, RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.NO_PERMISSION
    assert (await ask(wire, ROOT, RequestCode.PUT_QUOTA, PutQuotaRequestHeader("host:a", topics=1))).code != 0
    config = b"logLevel=DEBUG\nnamesrvAddr=10.0.0.1:9876\n"
    await ask(wire, ROOT, RequestCode.UPDATE_BROKER_CONFIG, body=config)
    found = await written(audited, tmp_path)
    told = [
        (one["event"], one.get("account"), one.get("request"), one.get("resources"), one.get("allowed"))
        for one in found
        if one["event"] != "failed"
    ]
    assert told == [
        ("started", None, None, None, None),
        ("login", "root", None, None, None),
        ("request", "root", "UPDATE_AND_CREATE_TOPIC", ["Topic:Orders Create"], True),
        ("request", "root", "AUTH_CREATE_USER", ["Cluster:* Update"], True),
        ("request", "root", "AUTH_CREATE_ACL", ["Cluster:* Update"], True),
        ("login", "alice", None, None, None),
        ("denied", "alice", "DELETE_TOPIC_IN_BROKER", ["Topic:Orders Delete"], False),
        ("request", "root", "PUT_QUOTA", ["Cluster:* Update"], True),
        ("request", "root", "UPDATE_BROKER_CONFIG", ["Cluster:* Update"], True),
        ("login", "root", None, None, None),
        ("stopped", None, None, None, None),
    ]
    by_request = {one.get("request"): one for one in found if one["event"] == "request"}
    assert by_request["UPDATE_AND_CREATE_TOPIC"]["fields"]["writeQueueNums"] == 4
    assert by_request["AUTH_CREATE_USER"]["fields"] == {"username": "alice"}
    assert "Topic:Orders" in by_request["AUTH_CREATE_ACL"]["body"]
    assert by_request["UPDATE_BROKER_CONFIG"]["keys"] == ["logLevel", "namesrvAddr"]
    host, port = wire.writer.get_extra_info("sockname")
    assert {one["address"] for one in found if "address" in one} == {f"{host}:{port}"}
    assert {one["server"] for one in found} == {"broker-a"}
    (denied,) = (one for one in found if one["event"] == "denied")
    assert "has no permission" in denied["why"]
    failed = [one for one in found if one["event"] == "failed"]
    assert failed[0]["request"] == "PUT_QUOTA"
    assert failed[0]["opaque"] == by_request["PUT_QUOTA"]["opaque"]
    assert "is not a valid quota subject" in failed[0]["why"]


async def test_no_secret_is_ever_in_the_log(start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path) -> None:
    secrets = ("secret-of-root", "secret-of-alice", "secret-of-thief", "secret-in-config", "secret-of-new")
    broker = await start_broker(**AUDITED, audit_log_sampling=1)
    wire = await connect_to(broker)
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    body = json.dumps({"username": "alice", "password": "secret-of-new"}).encode()
    await ask(wire, ROOT, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader("alice"), body)
    await ask(wire, Credentials("thief", "secret-of-thief"), RequestCode.GET_BROKER_CONFIG)
    await ask(wire, ROOT, RequestCode.SEND_MESSAGE_V2, send_header("T", properties="p\x01secret-in-config"))
    await ask(wire, ROOT, RequestCode.UPDATE_BROKER_CONFIG, body=b"initAuthenticationUser=secret-in-config\n")
    old = CreateAccessConfigRequestHeader("someone", secret_key="secret-of-new")
    await ask(wire, ROOT, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, old)
    await broker.stop()
    path = tmp_path / "store" / "audit" / "audit.log"
    text = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [secret for secret in secrets if secret in text] == []
    claims = [one["claimed"] for one in entries(tmp_path) if one["event"] == "denied"]
    assert claims == ["thief"]


async def test_hostile_names_neither_forge_entries_nor_reach_a_terminal(
    audited: Broker, wire: Wire, tmp_path: Path
) -> None:

    await ask(
        wire, Credentials(HOSTILE, "whatever-it-is"), RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader("T", 0)
    )
    await ask(wire, ROOT, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(HOSTILE))
    await ask(wire, ROOT, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader("x" * 30_000))
    found = await written(audited, tmp_path)
    data = (tmp_path / "store" / "audit" / "audit.log").read_bytes()
    assert all(byte == 0x0A or 0x20 <= byte < 0x7F for byte in data)
    assert len(data.splitlines()) == len(found)
    (denied,) = (one for one in found if one["event"] == "denied")
    assert denied["claimed"] == HOSTILE
    requests = [one for one in found if one["event"] == "request"]
    assert requests[0]["fields"]["topic"] == HOSTILE
    assert len(requests[1]["fields"]["topic"]) == 512


async def test_a_flood_of_denials_is_summed_up_and_an_administrator_is_still_seen(
    audited: Broker, wire: Wire, clock: VirtualClock, tmp_path: Path
) -> None:
    thief = Credentials("thief", "no-secret-at-all")
    for _ in range(300):
        command = wire.command(RequestCode.GET_BROKER_CONFIG)
        thief.sign(command)
        wire.post(command)
    for at in range(MAX_AUDIT_KINDS + 50):
        command = wire.command(RequestCode.GET_BROKER_CONFIG)
        Credentials(f"thief-{at}", "no-secret-at-all").sign(command)
        wire.post(command)
    assert (await ask(wire, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic("Orders"))).code == 0
    clock.advance(1.1)
    found = await written(audited, tmp_path)
    denials = [one for one in found if one["event"] == "denied"]
    assert sum(one.get("times", 1) for one in denials) == 300 + MAX_AUDIT_KINDS + 50
    assert len(denials) <= MAX_AUDIT_KINDS + 2
    assert [one["request"] for one in found if one["event"] == "request"] == ["UPDATE_AND_CREATE_TOPIC"]


async def test_denials_by_quotas_are_in_the_log(
    start_broker: StartBroker, connect_to: ConnectTo, clock: VirtualClock, tmp_path: Path
) -> None:
    broker = await start_broker(audit_log_enable=True)
    wire = await connect_to(broker)
    await wire.call(RequestCode.PUT_QUOTA, PutQuotaRequestHeader("group:producers", messages_in=0))
    assert (await clock.run_until(wire.send("T"), 2)).code == ResponseCode.SYSTEM_BUSY
    found = await written(broker, tmp_path)
    (put, denied) = (one for one in found if one["event"] in ("request", "denied"))
    assert (put["account"], put["fields"]) == (None, {"subject": "group:producers", "messagesIn": 0})
    assert denied["resources"] == ["Topic:T", "Group:producers"]
    assert denied["why"].startswith("[QUOTA]group:producers is at its limit of 0")


@pytest.mark.parametrize("path", ["core", "python"])
async def test_one_of_so_many_sends_and_pulls_is_in_the_log(
    start_broker: StartBroker, connect_to: ConnectTo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    if path == "python":
        monkeypatch.setattr("cometmq.broker.controller.CORE", None)
    broker = await start_broker(audit_log_enable=True, audit_log_sampling=10)
    wire = await connect_to(broker)
    for _ in range(5):
        commands = [wire.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"hello") for _ in range(19)]
        for command in commands:
            wire.post(command)
        for command in commands:
            assert (await wire.answer(command.opaque)).code == 0
    for _ in range(5):
        await wire.call(RequestCode.PULL_MESSAGE, pull_header("T"))
    samples = [one for one in await written(broker, tmp_path) if one["event"] == "sample"]
    assert len(samples) == 10
    assert {tuple(one["resources"]) for one in samples[:-1]} == {("Topic:T Pub",)}


async def test_every_code_is_administration_or_known_to_be_none(start_broker: StartBroker, audited: Broker) -> None:
    administration = {RequestCode(code) for code in audited.processors.codes()} - BY_THEMSELVES
    changing = {code for code in administration if code.name.startswith(("UPDATE", "DELETE", "PUT", "AUTH", "CLEAN"))}
    assert {RequestCode.UPDATE_BROKER_CONFIG, RequestCode.AUTH_CREATE_USER, RequestCode.PUT_QUOTA} <= changing
    assert {code for code in BY_THEMSELVES if "DELETE" in code.name or "CREATE" in code.name} == set()


async def test_a_nameserver_has_an_audit_log_too(tmp_path: Path) -> None:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", kv_config_path=str(tmp_path / "kv.json"), audit_log_enable=True
    )
    nameserver = NameServer(config)
    await nameserver.start()
    wire = Wire(*await asyncio.open_connection("127.0.0.1", nameserver.port))
    await wire.call(RequestCode.PUT_KV_CONFIG, PutKVConfigRequestHeader("ns", "key", "a-hidden-value"))
    await wire.call(9_999)
    await wire.close()
    await nameserver.stop()
    found = list(read_entries(tmp_path / "audit.log", lambda *_: pytest.fail("damage")))
    assert [one.get("request") for one in found] == [None, "PUT_KV_CONFIG", "9999", None]
    assert found[1]["fields"] == {"namespace": "ns", "key": "key"}


async def test_a_change_of_the_files_of_accounts_is_an_entry(
    audited: Broker, clock: VirtualClock, tmp_path: Path
) -> None:
    users = tmp_path / "store" / "config" / "auth.json"
    users.write_bytes(users.read_bytes() + b"\n")
    assert audited.access is not None
    await audited.access._check_files()
    assert "accounts" in [one["event"] for one in await written(audited, tmp_path)]


async def test_a_file_that_cannot_be_opened_ends_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AuthError, match=r"the audit log .* cannot be opened"):
        await start_broker(audit_log_enable=True, audit_log_path=str(tmp_path / "file" / "audit.log"))
