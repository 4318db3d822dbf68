"""--dry-run: every command that changes something has it, shows old and new, and changes nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import click
import pytest
from tests.cli.admin.conftest import Run
from tests.cli.test_help import ALL

from cometmq.broker.controller import Broker
from cometmq.cli.dry_run import READING_ONLY, DryRunError
from cometmq.client import Admin, Message, Producer
from cometmq.namesrv.server import NameServer
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.command import RemotingCommand

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "topic create": ("fresh --queues 3", ("fresh", "3 queues, permission rw")),
    "topic alter": ("orders --queues 4", ("read queues", "2", "4")),
    "topic delete": ("orders", ("orders", "2 queues, permission rw, 6 messages")),
    "topic lite expire": ("sessions --prefix job-", ("job-1", "1 message")),
    "topic import": ("{document}", ("topic orders: write_queues", "2", "5")),
    "group create": ("fresh", ("fresh", "max retries 16")),
    "group alter": ("readers --max-retries 3", ("max retries", "16", "3")),
    "group delete": ("readers", ("readers", "max retries 16", "offsets")),
    "group reset": ("readers --topic orders --earliest --execute", ("Offsets of group readers",)),
    "user create": ("fresh --password-file {password}", ("user fresh", "Normal")),
    "user update": ("alice --type Super", ("type", "Normal", "Super")),
    "user delete": ("alice", ("user alice",)),
    "acl create": ("alice Topic:Orders -a Sub", ("Topic:Orders", "Allow Pub", "Allow Sub")),
    "acl delete": ("alice", ("Topic:Orders", "Allow Pub")),
    "quota set": ("account:alice --messages-in 9", ("Messages/s in", "5", "9")),
    "quota delete": ("account:alice", ("Messages/s in", "5")),
    "broker config set": ("fileReservedTime=12", ("fileReservedTime", "72", "12")),
    "broker drain": ("broker-a --force", ("brokerPermission", "6", "4")),
    "namesrv config set": ("orderMessageEnable=true", ("orderMessageEnable", "false", "true")),
    "dlq resend": ("readers --all", ()),
    "transaction resume": ("{offset_msg_id}", ("given up", "checked again")),
}
"""Every command that changes a cluster; its arguments, and what --dry-run shows."""

READING_COMMANDS = {
    *("failover status", "topic list", "topic describe", "topic stats", "topic route", "topic export"),
    *("topic lite list", "topic lite describe", "topic lite lag", "topic lite client"),
    *("group list", "group describe", "group offsets"),
    *("user list", "user show", "acl list", "acl show", "acl test", "quota list", "quota show"),
    *("cluster list", "cluster status", "cluster slaves", "broker config get", "broker config diff"),
    *("namesrv config get", "message get", "message query", "message at", "message trace", "message why"),
    *("transaction list", "delay waiting", "delay list", "dlq list", "dlq read", "dlq export", "doctor", "top"),
}
SENDING = {"produce", "consume", "bench produce", "bench consume", "bench roundtrip"}
"""Their work is messages: a try of them is a message."""
OF_A_SET = {"failover handover", "failover force"}
"""They have --dry-run, too; tests/cli/admin/test_failover.py runs it on members of a set."""
SERVERS = {"broker", "context create", "console", "mcp", "proxy"}


def test_every_command_that_changes_a_cluster_has_a_dry_run() -> None:
    def flags(ctx: click.Context) -> set[str]:
        return {flag for param in ctx.command.params for flag in param.opts}

    connecting = {
        ctx.command_path.removeprefix("cometmq "): flags(ctx)
        for ctx in ALL
        if "--namesrv" in flags(ctx) and "pipeline" not in ctx.command_path
    }
    assert connecting.keys() - SERVERS == CASES.keys() | READING_COMMANDS | SENDING | OF_A_SET, (
        "say of a new command what it does"
    )
    assert [name for name in CASES if "--dry-run" not in connecting[name]] == []
    assert [name for name in READING_COMMANDS if "--dry-run" in connecting[name]] == []


def state_of(nameserver: NameServer, broker: Broker) -> dict[str, Any]:
    """All that the commands could change."""
    assert nameserver.access is not None
    assert broker.access is not None
    assert nameserver.access.users is not None
    assert broker.access.users is not None
    return copy.deepcopy(
        {
            "topics": broker.topics.table,
            "groups": broker.groups.table,
            "offsets": {key: of for key, of in broker.offsets.table.items() if "RMQ_SYS" not in key},
            "users": (str(nameserver.access.users.users), str(broker.access.users.users)),
            "messages": broker.stats.put_messages,
            "config": str(broker.config),
            "namesrv": str(nameserver.config),
        }
    )


async def test_a_dry_run_shows_old_and_new_and_changes_nothing(
    run: Run, servers: tuple[NameServer, Broker], tmp_path: Path
) -> None:
    password = tmp_path / "password"
    password.write_text("secret-of-alice\n")
    for words in (
        "topic create orders --queues 2",
        "group create readers",
        f"user create alice --password-file {password}",
        "acl create alice Topic:Orders -a Pub",
        "quota set account:alice --messages-in 5",
        "produce orders --count 6 --batch 1",
        "consume orders --group readers --from-beginning --max 6",
    ):
        made = await run(*words.split())
        assert made.code == 0, (words, made.err)
    async with Admin(servers[0].address) as admin, Producer("producers", servers[0].address) as producer:
        await admin.create_lite_topic("sessions", queues=1)
        await producer.send(Message("sessions", b"x", lite_topic="job-1"))
    (sent,) = ((await run("message", "at", "--topic", "orders", "--queue", "0", "--offset", "0", "-o", "json")).json(),)
    given = {"password": str(password), "offset_msg_id": sent["offset_msg_id"]}
    exported = (await run("topic", "export")).json()
    exported["topics"][0]["write_queues"] = 5
    (tmp_path / "document.json").write_text(json.dumps(exported))
    given["document"] = str(tmp_path / "document.json")
    quotas = (await run("quota", "list", "-o", "json")).out
    before = state_of(*servers)
    for name, (words, shown) in CASES.items():
        done = await run(*name.split(), *words.format(**given).split(), "--dry-run")
        assert done.code == 0, (name, done.err)
        assert [word for word in shown if word not in done.out] == [], (name, done.out)
        assert "Nothing was changed" in done.err or name == "dlq resend", (name, done.err)
        assert state_of(*servers) == before, name
    assert (await run("quota", "list", "-o", "json")).out == quotas


@pytest.mark.parametrize("code", RequestCode)
def test_under_a_dry_run_the_client_sends_only_requests_that_read(code: RequestCode) -> None:
    changing = ("UPDATE", "CREATE", "DELETE", "PUT", "SEND", "RESET", "WIPE", "RESUME", "CLEAN", "REGISTER", "CLONE")
    assert READING_ONLY.before is not None
    request = RemotingCommand(int(code))
    if any(word in code.name.split("_") for word in changing) and "UNREGISTER" not in code.name:
        with pytest.raises(DryRunError):
            READING_ONLY.before("host:1", request)


def test_under_a_dry_run_a_request_that_nobody_knows_is_not_sent() -> None:
    assert READING_ONLY.before is not None
    with pytest.raises(DryRunError, match="99999 was not sent"):
        READING_ONLY.before("host:1", RemotingCommand(99_999))
    READING_ONLY.before("host:1", RemotingCommand(int(RequestCode.GET_BROKER_CONFIG)))
