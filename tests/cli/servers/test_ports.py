"""The doctor checks every port that the servers of this machine open, and names the process that holds it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.cli.conftest import CommandLine
from tests.cli.servers.test_servers import running

from cometmq.message.hosts import listening_socket
from cometmq.testing import free_port

LISTENS = "0A"
NOBODY = 65534


def listening_ports(pid: int) -> set[int]:
    """Ports on which a process listens."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            inodes.add(os.readlink(entry))
    rows = [
        row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().split("\n")
    ]
    return {
        int(row[1].rpartition(":")[2], 16) for row in rows if LISTENS in row[3:4] and f"socket:[{row[9]}]" in inodes
    }


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells who listens on a port")
def test_the_doctor_names_the_process_on_each_port_that_serve_opens(offline: CommandLine, tmp_path: Path) -> None:
    metrics = free_port()  # and the next one, for the broker
    chosen = {"--port": free_port(), "--namesrv-port": free_port(), "--grpc-port": free_port()}
    chosen |= {"--metrics-port": metrics, "--console-port": free_port()}
    options = [word for option, port in chosen.items() for word in (option, str(port))]
    with running(offline, "serve", "--data", str(tmp_path), *options) as (process, ready):
        assert ready.startswith("CometMQ ready")
        assert process.stderr is not None
        while not process.stderr.readline().startswith(b"Console at"):
            assert process.poll() is None
        opened = listening_ports(process.pid)
        name = Path(f"/proc/{process.pid}/comm").read_text().strip()
        rows = offline("doctor", "--data", str(tmp_path), *options, "-o", "json").json()
    held = {row["found"] for row in rows if f" is in use by {name} (process {process.pid})" in row["found"]}
    assert {int(found.split()[0]) for found in held} == opened
    assert len(opened) == 8
    assert {row["state"] for row in rows if row["found"] in held} == {"advice"}
    assert all("choose another" in row["todo"] for row in rows if row["found"] in held)


def test_the_doctor_checks_the_ports_that_servers_have_without_options(offline: CommandLine) -> None:
    defaults = {9876, 10909, 10911, 10912, 5556, 5557, 8080, 8081, 8090}
    rows = offline("doctor", "-o", "json").json()
    assert {int(row["found"].split()[0]) for row in rows if "port" in row["check"].split()} == defaults


def test_a_port_of_a_program_that_listens_on_one_address_only_is_in_use(offline: CommandLine) -> None:
    with closing(listening_socket("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        rows = offline("doctor", "--console-port", str(port), "-o", "json").json()
    [console] = [row for row in rows if row["check"] == "port of the console"]
    assert console["state"] == "advice"
    assert console["found"].startswith(f"{port} is in use")
    assert "--console-port" in console["todo"]


@pytest.mark.parametrize("port", [1, 2, 65_535])
def test_the_doctor_can_be_asked_about_the_first_and_the_last_port(offline: CommandLine, port: int) -> None:
    rows = offline("doctor", "--port", str(port), "-o", "json").json()
    assert any(row["check"] == "port of the broker" and row["found"].startswith(f"{port} ") for row in rows)


@pytest.mark.skipif(os.name == "nt", reason="this system reserves no ports for administrators")
def test_a_port_that_only_administrators_may_use_is_not_said_to_be_in_use() -> None:
    asked = (
        "import os; from cometmq.cli.admin import doctor; from cometmq.cli.servers.ports import Port; "
        f"os.geteuid() or os.setuid({NOBODY}); print(doctor._port(Port('broker', 7, '--port')))"
    )
    found = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    if "7 is free" in found:
        pytest.skip("this system gives the first ports to everybody")
    assert "7 cannot be used: permission denied" in found
    assert "one from 1024 on" in found


def test_the_doctor_checks_no_port_that_the_server_is_to_pick(offline: CommandLine) -> None:
    rows = offline("doctor", "--port", "0", "--namesrv-port", "0", "-o", "json").json()
    assert {row["check"] for row in rows if row["check"].startswith("port ")} == {"port of the MCP server"}
