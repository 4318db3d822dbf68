"""``cometmq user`` and ``cometmq acl`` against a broker and a nameserver with users."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.admin.conftest import Run
from tests.cli.conftest import CommandLine

from cometmq.broker.controller import Broker
from cometmq.namesrv.server import NameServer


async def test_users_and_policies_from_creation_to_deletion(
    run: Run, servers: tuple[NameServer, Broker], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("secret-of-alice\n")
    nameserver, broker = servers
    made = await run("user", "create", "alice", "--password-file", str(password))
    assert (made.code, made.out) == (0, ""), made.err
    for table in (nameserver.access, broker.access):
        assert table is not None
        assert table.users is not None
        assert table.users.users["alice"].password == "secret-of-alice"
    listed = (await run("user", "list", "-o", "json")).json()
    assert {row["name"]: row["type"] for row in listed} == {"root": "Super", "servers": "Super", "alice": "Normal"}
    granted = await run("acl", "create", "alice", "Topic:Ord*", "-a", "pub", "--source-ip", "10.0.0.0/8")
    assert granted.code == 0, granted.err
    assert (await run("acl", "create", "alice", "Topic:Orders.old", "-a", "All", "--deny")).code == 0
    rows = (await run("acl", "show", "alice", "-o", "json")).json()
    assert [(row["resource"], row["decision"]) for row in rows] == [
        ("Topic:Ord*", "Allow"),
        ("Topic:Orders.old", "Deny"),
    ]
    for arguments, allowed, why in (
        (("alice", "Pub", "Topic:Orders", "--source-ip", "10.1.2.3"), True, "Allow on Topic:Ord*"),
        (("alice", "Pub", "Topic:Orders"), False, "no policy matches"),
        (("alice", "Pub", "Topic:Orders.old", "--source-ip", "10.1.2.3"), False, "Deny on Topic:Orders.old"),
        (("root", "Delete", "Topic:Orders"), True, "a super user has all permissions"),
    ):
        tested = await run("acl", "test", *arguments, "-o", "json")
        assert (tested.code, tested.json()["allowed"], tested.json()["why"]) == (int(not allowed), allowed, why)
    assert (await run("acl", "delete", "alice", "Topic:Ord*")).code == 0
    assert len((await run("acl", "list", "--user", "alice", "-o", "json")).json()) == 1
    assert (await run("user", "update", "alice", "--status", "disable")).code == 0
    shown = (await run("user", "show", "alice", "-o", "json")).json()
    assert shown == {"name": "alice", "type": "Normal", "status": "disable"}
    assert (await run("user", "delete", "alice", "--yes")).code == 0
    gone = await run("user", "show", "alice")
    assert (gone.code, "has no user alice" in gone.err) == (1, True)


async def test_a_change_that_not_all_servers_have_says_where_it_is_missing(
    run: Run, servers: tuple[NameServer, Broker], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("secret-of-alice\n")
    nameserver, broker = servers
    at_one = await run("user", "create", "alice", "--password-file", str(password), "--server", nameserver.address)
    assert at_one.code == 0, at_one.err
    partly = await run("user", "create", "alice", "--password-file", str(password))
    assert partly.code == 3
    outcome = "the change succeeded on 1 of 2 servers and failed on the others"
    assert f"{outcome}: creating the user: {nameserver.address} answered" in partly.err
    assert "The user is existed" in partly.err
    everywhere = await run("acl", "create", "alice", "Topic:Orders", "-a", "Pub")
    assert everywhere.code == 0, everywhere.err
    for table in (nameserver.access, broker.access):
        assert table is not None
        assert table.users is not None
        assert table.users.users["alice"].policies
    nowhere = await run("acl", "create", "nobody", "Topic:Orders", "-a", "Pub")
    assert nowhere.code == 1


async def test_what_is_refused_is_told_with_the_next_step(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wrong = await run("acl", "create", "alice", "Orders", "-a", "Pub")
    assert wrong.code == 1
    assert "Topic:Orders" in wrong.err
    missing = await run("acl", "create", "nobody", "Topic:Orders", "-a", "Pub")
    assert "User:nobody is not exist" in missing.err
    monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "another-secret")
    denied = await run("user", "list")
    assert denied.code == 1
    assert denied.err.count("not this user's password") == 1
    assert "another-secret" not in denied.err


async def test_a_file_of_acl_1_is_tested_without_a_server(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n- {accessKey: billing-account, secretKey: secret-of-billing, topicPerms: [Orders=PUB]}\n"
    )
    command = CommandLine()
    for topic, code, why in (
        ("Orders", 0, "plain_acl.yml allows it"),
        ("Closed", 1, "No default permission for topic"),
    ):
        tested = await asyncio.to_thread(
            command, "acl", "test", "billing-account", "Pub", f"Topic:{topic}", "--plain", str(tmp_path), "-o", "json"
        )
        assert tested.code == code
        assert why in tested.json()["why"]
    stranger = await asyncio.to_thread(
        command, "acl", "test", "stranger", "Pub", "Topic:Orders", "--plain", str(tmp_path)
    )
    assert (stranger.code, "No acl config for stranger" in stranger.err) == (1, True)
