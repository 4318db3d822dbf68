"""Users and policies of ACL 2.0 go over to the members of a set, and are shown to nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.auth.test_users import POLICIES
from tests.broker.access.test_access import ask
from tests.broker.access.test_users import ALICE, INIT, ROOT, create_user
from tests.broker.conftest import ConnectTo
from tests.broker.replication.members.conftest import Follower, Master, StartFollower, StartMaster
from tests.broker.replication.members.test_pair import follow, has_all

from cometmq.auth.model import AuthError
from cometmq.auth.users import UserTable
from cometmq.remoting.admin_headers import DeleteUserRequestHeader
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.headers import SetUsersHeader
from cometmq.testing import VirtualClock, wait_until

OWN = json.dumps({"accessKey": "broker", "secretKey": "secret-of-broker"})
OPTIONS: dict[str, Any] = {**INIT, "inner_client_authentication_credentials": OWN}


def users(one: Master | Follower) -> UserTable:
    assert one.broker.access is not None
    assert one.broker.access.users is not None
    return one.broker.access.users


async def test_changes_of_users_go_over(
    start_master: StartMaster, start_follower: StartFollower, connect_to: ConnectTo, clock: VirtualClock
) -> None:
    """Also those that this member had before, since the master may have deleted them while it was down."""
    master, follower = await start_master(**OPTIONS), await start_follower(**OPTIONS)
    users(follower).create("left", "deleted-elsewhere")
    follow(follower, master)
    await has_all(follower, master, clock)
    wire = await connect_to(master.broker)
    assert (await create_user(wire, ROOT, "alice", ALICE.secret_key)).code == ResponseCode.SUCCESS
    users(master).put_policies("alice", POLICIES)

    def is_same() -> bool:
        return users(follower).users == users(master).users and "alice" in users(master).users

    assert await wait_until(clock, is_same, 5), follower.broker.slave.tables.trouble
    assert UserTable(users(follower).path, None).users == users(master).users, "in the file, too"
    version = users(follower).version
    await clock.run_for(3)
    assert users(follower).version == version, "nothing is written while nothing changes"
    done = await ask(wire, ROOT, RequestCode.AUTH_DELETE_USER, DeleteUserRequestHeader("alice"))
    assert done.code == ResponseCode.SUCCESS
    assert await wait_until(clock, lambda: "alice" not in users(follower).users, 5)
    assert follower.broker.slave.tables.trouble == ""


async def test_only_a_super_user_gets_them_and_encrypted_with_the_own_password(
    start_master: StartMaster, connect_to: ConnectTo
) -> None:
    master = await start_master(**OPTIONS)
    wire = await connect_to(master.broker)
    assert (await create_user(wire, ROOT, "alice", ALICE.secret_key)).code == ResponseCode.SUCCESS
    users(master).put_policies("alice", POLICIES)
    denied = await ask(wire, ALICE, RequestCode.GET_SET_USERS, SetUsersHeader())
    assert denied.code == ResponseCode.NO_PERMISSION
    given = await ask(wire, ROOT, RequestCode.GET_SET_USERS, SetUsersHeader())
    assert given.code == ResponseCode.SUCCESS
    for secret in (ROOT.secret_key, ALICE.secret_key, "secret-of-broker"):
        assert secret.encode() not in given.body
    version = given.header(SetUsersHeader).version
    again = await ask(wire, ROOT, RequestCode.GET_SET_USERS, SetUsersHeader(version))
    assert again.body == b""


async def test_without_accounts_nobody_gets_anything(start_master: StartMaster, connect_to: ConnectTo) -> None:
    master = await start_master()
    answer = await ask(await connect_to(master.broker), None, RequestCode.GET_SET_USERS, SetUsersHeader())
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{}", b'{"users":[]}', b'{"users":[{"username":"a","userType":"Super","userStatus":"enable"}]}'],
)
def test_a_list_that_cannot_be_used_changes_nothing(tmp_path: Path, data: bytes) -> None:
    """An empty list never wins."""
    table = UserTable(tmp_path / "auth.json", None)
    table.create("root", "secret-of-root", "Super")
    before, content = table.users, table.path.read_bytes()
    with pytest.raises(AuthError):
        table.take_over(data, b"key")
    assert table.users is before
    assert table.path.read_bytes() == content


def test_passwords_for_another_account_are_refused(tmp_path: Path) -> None:
    table = UserTable(tmp_path / "auth.json", None)
    table.create("root", "secret-of-root", "Super")
    exported = table.exported(b"one")
    assert not table.take_over(exported, b"one"), "nothing has changed"
    with pytest.raises(AuthError, match="not encrypted with this key"):
        table.take_over(exported, b"two")
