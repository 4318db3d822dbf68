"""Servers at addresses of both families, mapped and with a zone, on the event loop that they use in production."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.cli.servers.test_servers import running
from tests.helpers.hosts import link_local

from cometmq.message.hosts import format_address


@pytest.mark.parametrize("host", ["::1", "::ffff:127.0.0.1", "a zone"])
def test_message_get_finds_a_message_by_its_id(offline: CommandLine, tmp_path: Path, host: str) -> None:
    host = link_local() if host == "a zone" else host
    if not host:
        pytest.skip("this machine has no link-local address")
    at = ("-o", f"bindAddress={host}")
    with running(offline, "namesrv", "-p", "0", *at, "-o", f"kvConfigPath={tmp_path}/kv.json") as (_, line):
        address = line.split()[-1]
        assert address.rpartition(":")[0] == format_address(host, 0).rpartition(":")[0]
        command = CommandLine(address)
        keys = (*at, "-o", f"brokerIP1={host}", "-o", "listenPort=0", "-o", f"namesrvAddr={address}")
        with running(command, "broker", "--data", str(tmp_path / "store"), *keys):
            (sent,) = command("produce", "found", "--body", "needle", "-o", "json").json()
            assert command("message", "get", sent["offset_msg_id"], "-o", "json").json()["body"] == "needle"
