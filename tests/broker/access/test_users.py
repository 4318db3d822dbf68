"""A broker with users and policies of ACL 2.0, over the wire."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.broker.access.test_access import ask, send
from tests.broker.conftest import ConnectTo, StartBroker
from tests.broker.wire import Wire, pull_header

from cometmq.broker.controller import Broker
from cometmq.options import ConfigError
from cometmq.remoting.admin_headers import (
    CreateAclRequestHeader,
    CreateTopicRequestHeader,
    CreateUserRequestHeader,
    DeleteAclRequestHeader,
    DeleteUserRequestHeader,
    GetAclRequestHeader,
    GetUserRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UpdateUserRequestHeader,
)
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.signing import Credentials

ROOT = Credentials("root", "secret-of-root")
ALICE = Credentials("alice", "secret-of-alice")
INIT = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_authentication_user": '{"username":"root","password":"secret-of-root"}',
}


@pytest.fixture
async def guarded(start_broker: StartBroker) -> Broker:
    return await start_broker(**INIT)


@pytest.fixture
async def wire(guarded: Broker, connect_to: ConnectTo) -> Wire:
    return await connect_to(guarded)


async def create_user(wire: Wire, by: Credentials, name: str, password: str, kind: str = "Normal") -> Any:
    body = json.dumps({"username": name, "password": password, "userType": kind}).encode()
    return await ask(wire, by, RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader(name), body)


async def put_acl(wire: Wire, by: Credentials, name: str, *entries: tuple[str, str, str]) -> Any:
    body = {
        "subject": f"User:{name}",
        "policies": [
            {
                "policyType": "CUSTOM",
                "entries": [
                    {"resource": resource, "actions": actions.split(","), "sourceIps": [], "decision": decision}
                    for resource, actions, decision in entries
                ],
            }
        ],
    }
    header = CreateAclRequestHeader(f"User:{name}")
    return await ask(wire, by, RequestCode.AUTH_CREATE_ACL, header, json.dumps(body).encode())


async def test_users_get_what_their_policies_allow_until_these_change(wire: Wire) -> None:
    topic = CreateTopicRequestHeader("Orders", "TBW102", 4, 4, 6, "SINGLE_TAG", order=False)
    assert (await ask(wire, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    for by, words in (
        (None, "username cannot be null."),
        (ALICE, "User:alice is not found."),
        (Credentials("root", "another-secret"), "check signature failed."),
    ):
        answer = await send(wire, by, "Orders")
        assert (answer.code, (answer.remark or "").startswith(words)) == (ResponseCode.NO_PERMISSION, True)
    assert (await create_user(wire, ROOT, "alice", "secret-of-alice")).code == 0
    denied = await send(wire, ALICE, "Orders")
    assert "User:alice has no permission to access Topic:Orders from 127.0.0.1, no matched policies." in (
        denied.remark or ""
    )
    assert (await put_acl(wire, ROOT, "alice", ("Topic:Ord*", "Pub,Sub", "Allow"))).code == 0
    assert (await send(wire, ALICE, "Orders")).code == 0
    pull = pull_header("Orders", consumer_group="g")
    assert "Group:g" in ((await ask(wire, ALICE, RequestCode.PULL_MESSAGE, pull)).remark or "")
    assert (await put_acl(wire, ROOT, "alice", ("Topic:Orders", "Pub", "Deny"))).code == 0
    assert "the decision is deny." in ((await send(wire, ALICE, "Orders")).remark or "")
    gone = DeleteAclRequestHeader("User:alice", None, "Topic:Orders")
    assert (await ask(wire, ROOT, RequestCode.AUTH_DELETE_ACL, gone)).code == 0
    assert (await send(wire, ALICE, "Orders")).code == 0
    body = json.dumps({"userStatus": "disable"}).encode()
    assert (await ask(wire, ROOT, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader("alice"), body)).code == 0
    assert "is disabled" in ((await send(wire, ALICE, "Orders")).remark or "")
    assert (await ask(wire, ROOT, RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader("alice"))).code == 0
    assert "is not found" in ((await send(wire, ALICE, "Orders")).remark or "")


async def test_users_and_policies_are_shown_without_passwords(wire: Wire, guarded: Broker) -> None:
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    await put_acl(wire, ROOT, "alice", ("Topic:Orders", "Pub", "Allow"), ("Group:g", "Sub", "Deny"))
    shown = [
        await ask(wire, ROOT, RequestCode.AUTH_GET_USER, GetUserRequestHeader("alice")),
        await ask(wire, ROOT, RequestCode.AUTH_LIST_USER, ListUsersRequestHeader("ali")),
        await ask(wire, ROOT, RequestCode.AUTH_GET_ACL, GetAclRequestHeader("User:alice")),
        await ask(wire, ROOT, RequestCode.AUTH_LIST_ACL, ListAclsRequestHeader(None, "Topic:")),
        await ask(wire, ROOT, RequestCode.GET_BROKER_CONFIG),
    ]
    assert all(answer.code == 0 for answer in shown)
    assert json.loads(shown[0].body) == {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    assert len(json.loads(shown[1].body)) == 1
    [policy] = json.loads(shown[2].body)["policies"]
    assert [(entry["resource"], entry["decision"]) for entry in policy["entries"]] == [
        ("Topic:Orders", "Allow"),
        ("Group:g", "Deny"),
    ]
    [listed] = json.loads(shown[3].body)
    assert [entry["resource"] for entry in listed["policies"][0]["entries"]] == ["Topic:Orders"]
    assert not any(b"secret-of" in answer.body for answer in shown)
    assert "secret-of" not in repr(guarded.config)
    assert "secret-of" not in repr(guarded.live.current)


async def test_who_may_change_the_cluster_makes_no_super_users(wire: Wire) -> None:
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    await put_acl(wire, ROOT, "alice", ("Cluster:*", "All", "Allow"))
    assert (await create_user(wire, ALICE, "bob", "secret-of-bob")).code == 0
    assert "only be create by super user" in (await create_user(wire, ALICE, "eve", "secret-of-eve", "SUPER")).remark
    for name in ("alice", "root"):
        body = json.dumps({"userType": "Super", "password": "taken-over"}).encode()
        answer = await ask(wire, ALICE, RequestCode.AUTH_UPDATE_USER, UpdateUserRequestHeader(name), body)
        assert "only be update by super user" in (answer.remark or "")
    assert (await ask(wire, ALICE, RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader("root"))).code == 16
    assert (await ask(wire, ROOT, RequestCode.AUTH_LIST_USER, ListUsersRequestHeader())).code == 0


async def test_a_resource_that_is_none_deletes_nothing(wire: Wire) -> None:
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    await put_acl(wire, ROOT, "alice", ("Topic:Orders", "Pub", "Allow"))
    answer = await ask(wire, ROOT, RequestCode.AUTH_DELETE_ACL, DeleteAclRequestHeader("User:alice", None, "Orders"))
    assert "'Orders' is not a valid resource" in (answer.remark or "")
    shown = await ask(wire, ROOT, RequestCode.AUTH_GET_ACL, GetAclRequestHeader("User:alice"))
    assert "Topic:Orders" in shown.body.decode()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"policies":[]}', b'{"policies":[{"entries":[{}]}]}', b"x" * 300_000]
)
async def test_bodies_that_are_not_valid_change_nothing(wire: Wire, guarded: Broker, body: bytes) -> None:
    assert guarded.access is not None
    assert guarded.access.users is not None
    before = dict(guarded.access.users.users)
    for code, header in (
        (RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader("bob")),
        (RequestCode.AUTH_CREATE_USER, CreateUserRequestHeader("")),
        (RequestCode.AUTH_CREATE_ACL, CreateAclRequestHeader("User:root")),
        (RequestCode.AUTH_UPDATE_ACL, CreateAclRequestHeader("Group:root")),
    ):
        assert (await ask(wire, ROOT, code, header, body)).code != 0
    assert guarded.access.users.users == before


async def test_white_lists_free_codes_of_accounts_or_of_policies(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    broker = await start_broker(
        **INIT, authentication_whitelist="28", authorization_whitelist="GET_BROKER_CONFIG,AUTH_CREATE_USER"
    )
    wire = await connect_to(broker)
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    assert (await ask(wire, None, RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    assert (await ask(wire, None, RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.NO_PERMISSION
    assert (await ask(wire, ALICE, RequestCode.GET_BROKER_CONFIG)).code == 0
    assert "super user" in (await create_user(wire, ALICE, "eve", "secret-of-eve", "Super")).remark


async def test_without_authorization_every_user_may_do_everything(
    start_broker: StartBroker, connect_to: ConnectTo
) -> None:
    wire = await connect_to(await start_broker(**(INIT | {"authorization_enabled": False})))
    await create_user(wire, ROOT, "alice", "secret-of-alice")
    assert (await ask(wire, ALICE, RequestCode.GET_BROKER_CONFIG)).code == 0
    assert (await ask(wire, None, RequestCode.GET_BROKER_CONFIG)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (INIT | {"acl_enable": True}, "cannot both be set"),
        ({"authorization_enabled": True}, "set authenticationEnabled"),
        ({"authentication_enabled": True}, "no user exists"),
        (INIT | {"init_authentication_user": "root:secret-of-root"}, "must have the form"),
        (INIT | {"authentication_whitelist": "28,everything"}, "is not a request code"),
        ({"acl_enable": True}, "is configured"),
    ],
)
async def test_keys_that_cannot_be_meant_so_end_the_start(
    start_broker: StartBroker, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    with pytest.raises(ConfigError, match=words) as wrong:
        await start_broker(**options)
    assert "secret-of" not in str(wrong.value)
